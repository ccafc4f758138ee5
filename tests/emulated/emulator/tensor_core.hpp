// Sums of products as the tensor cores round them, in integers.
//
// The exact products and the accumulator are aligned to the largest of their exponents, each is cut off
// kExtraBits below float32's last place there, what is left is summed exactly, and the sum is cut off to
// float32 (M. Fasi et al., "Numerical behavior of NVIDIA tensor cores", PeerJ Comput. Sci. 7:e330, 2021).
// All cuts are toward zero; subnormal numbers count in full.
#pragma once

#include <stdint.h>

namespace emu {

constexpr int kBlock = 16;     // products that are summed with the accumulator in one step
constexpr int kExtraBits = 2;  // kept beyond float32's 24 in an aligned term

constexpr int kDepth = 16;  // products to an element of m16n8k16

struct Half {
  static constexpr int kExponentBits = 5;
  static constexpr int kFractionBits = 10;
};

struct Bfloat {
  static constexpr int kExponentBits = 8;
  static constexpr int kFractionBits = 7;
};

constexpr unsigned kNaN = 0x7fffffffu;
constexpr unsigned kInfinity = 0x7f800000u;
constexpr unsigned kSign = 0x80000000u;

// A row of a or a column of b: sign * significand * 2^(exponent - kSignificandBits). Zeros have an
// exponent that no other term's is below, so that they don't count in the largest.
struct Factors {
  static constexpr int kSignificandBits = 10;
  static constexpr int kZeroExponent = -(1 << 12);

  unsigned significand[kDepth];
  int exponent[kDepth];
  int sign[kDepth];  // 0, or -1 for negative numbers
  bool infinite[kDepth];
  bool nan[kDepth];
  bool finite;  // all of them

  template <class Format>
  void set(int k, unsigned bits) {
    constexpr int kExponentMask = (1 << Format::kExponentBits) - 1;
    constexpr int kBias = kExponentMask / 2;
    constexpr unsigned kFractionMask = (1u << Format::kFractionBits) - 1;
    const int field = static_cast<int>(bits >> Format::kFractionBits) & kExponentMask;
    const unsigned fraction = bits & kFractionMask;
    const unsigned leading = field == 0 ? 0 : 1u << Format::kFractionBits;
    significand[k] = (leading | fraction) << (kSignificandBits - Format::kFractionBits);
    exponent[k] = significand[k] == 0 ? kZeroExponent : (field == 0 ? 1 : field) - kBias;
    sign[k] = -static_cast<int>(bits >> 15 & 1u);
    infinite[k] = field == kExponentMask && fraction == 0;
    nan[k] = field == kExponentMask && fraction != 0;
    finite = finite && field != kExponentMask;
  }
};

// float32 of sum * 2^exponent, cut off toward zero; beyond the largest number, infinity.
inline unsigned truncate(long long sum, int exponent) {
  if (sum == 0) return 0;
  const unsigned sign = sum < 0 ? kSign : 0;
  const unsigned long long magnitude = static_cast<unsigned long long>(sum < 0 ? -sum : sum);
  const int top = 63 - __builtin_clzll(magnitude) + exponent;
  if (top > 127) return sign | kInfinity;
  const int last = (top < -126 ? -126 : top) - 23;  // exponent of the result's last place
  const int shift = last - exponent;
  const unsigned long long significand =
      shift > 63 ? 0 : shift > 0 ? magnitude >> shift : magnitude << -shift;
  // The leading bit of a normal number adds 1 to the exponent field.
  return sign | ((static_cast<unsigned>(last + 149) << 23) + static_cast<unsigned>(significand));
}

// What infinities and NaNs make of c and the products from `begin` on; 0 if there are none.
inline unsigned special_sum(unsigned c, const Factors& a, const Factors& b, int begin) {
  const unsigned magnitude = c & ~kSign;
  bool nan = magnitude > kInfinity;
  bool infinite[2] = {c == kInfinity, c == (kInfinity | kSign)};
  for (int k = begin; k < begin + kBlock; ++k) {
    const bool zero = a.significand[k] == 0 || b.significand[k] == 0;
    const bool is_infinite = a.infinite[k] || b.infinite[k];
    nan = nan || a.nan[k] || b.nan[k] || (is_infinite && zero);
    if (is_infinite) infinite[(a.sign[k] ^ b.sign[k]) & 1] = true;
  }
  if (nan || (infinite[0] && infinite[1])) return kNaN;
  return infinite[0] ? kInfinity : infinite[1] ? kInfinity | kSign : 0;
}

inline unsigned accumulate_block(unsigned c, const Factors& a, const Factors& b, int begin) {
  constexpr int kGridBits = 23 + kExtraBits;  // below the largest exponent
  constexpr int kProductBits = 2 * Factors::kSignificandBits;
  static_assert(kGridBits >= kProductBits, "products are shifted left onto the grid");
  const int field = static_cast<int>(c >> 23) & 0xff;
  if (field == 0xff || !a.finite || !b.finite) {
    const unsigned special = special_sum(c, a, b, begin);
    if (special != 0) return special;
  }
  const unsigned long long fraction = (c & 0x7fffffu) | (field == 0 ? 0 : 0x800000u);
  const int c_exponent =
      fraction == 0 ? 2 * Factors::kZeroExponent : (field == 0 ? 1 : field) - 127;
  int exponent[kBlock];
  int largest = c_exponent;
  for (int i = 0; i < kBlock; ++i) {
    exponent[i] = a.exponent[begin + i] + b.exponent[begin + i];
    largest = exponent[i] > largest ? exponent[i] : largest;
  }
  const auto cut = [largest](unsigned long long term, int exponent) {
    const int below = largest - exponent;
    return static_cast<long long>(below > 63 ? 0 : term >> below);
  };
  long long sum = cut(fraction << kExtraBits, c_exponent);
  if (c & kSign) sum = -sum;
  for (int i = 0; i < kBlock; ++i) {
    const int k = begin + i;
    const unsigned long long product = a.significand[k] * b.significand[k];
    const long long term = cut(product << (kGridBits - kProductBits), exponent[i]);
    const long long sign = a.sign[k] ^ b.sign[k];
    sum += (term ^ sign) - sign;
  }
  return truncate(sum, largest - kGridBits);
}

// Bits of c + sum of a[k] b[k], c in bits too: the launch may flush the host's subnormal numbers.
inline unsigned accumulate(unsigned c, const Factors& a, const Factors& b) {
  static_assert(kDepth % kBlock == 0, "whole steps");
  for (int begin = 0; begin < kDepth; begin += kBlock) c = accumulate_block(c, a, b, begin);
  return c;
}

}  // namespace emu
