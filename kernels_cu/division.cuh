// Division of what counts work, in 32 bits where they suffice: a block waits for it before its first copies.
#pragma once

// Of a number >= 0 and one above 0.
__device__ __forceinline__ long long quotient(long long number, long long divisor) {
  if ((number | divisor) >> 32 == 0) {
    return static_cast<unsigned>(number) / static_cast<unsigned>(divisor);
  }
  return number / divisor;
}
