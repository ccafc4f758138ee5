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

// A row of a or a column of b: significand * 2^(exponent - kSignificandBits), significands signed. Zeros have an
// exponent that no other term's is below, so that they don't count in the largest.
template <class Format>
struct Factors {
  static constexpr int kSignificandBits = 10;
  static constexpr int kZeroExponent = -(1 << 12);
  static constexpr int kExponentMask = (1 << Format::kExponentBits) - 1;
  static constexpr int kFractionMask = (1 << Format::kFractionBits) - 1;

  unsigned short bits[kDepth];
  int significand[kDepth];
  int exponent[kDepth];
  bool finite;  // all of them

  static int field(unsigned bits) { return static_cast<int>(bits >> Format::kFractionBits) & kExponentMask; }
  bool infinite(int k) const { return field(bits[k]) == kExponentMask && (bits[k] & kFractionMask) == 0; }
  bool nan(int k) const { return field(bits[k]) == kExponentMask && (bits[k] & kFractionMask) != 0; }
  bool negative(int k) const { return bits[k] >> 15; }

  // The rest from the bits, without branches: half of an emulated product's time was spent here.
  void decode() {
    int specials = 0;
    for (int k = 0; k < kDepth; ++k) {
      const int own = field(bits[k]);
      const int leading = own == 0 ? 0 : 1 << Format::kFractionBits;
      const int magnitude = (leading | (bits[k] & kFractionMask)) << (kSignificandBits - Format::kFractionBits);
      significand[k] = bits[k] >> 15 ? -magnitude : magnitude;
      exponent[k] = magnitude == 0 ? kZeroExponent : (own == 0 ? 1 : own) - kExponentMask / 2;
      specials += own == kExponentMask;
    }
    finite = specials == 0;
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
template <class Format>
unsigned special_sum(unsigned c, const Factors<Format>& a, const Factors<Format>& b, int begin) {
  const unsigned magnitude = c & ~kSign;
  bool nan = magnitude > kInfinity;
  bool infinite[2] = {c == kInfinity, c == (kInfinity | kSign)};
  for (int k = begin; k < begin + kBlock; ++k) {
    const bool zero = a.significand[k] == 0 || b.significand[k] == 0;
    const bool is_infinite = a.infinite(k) || b.infinite(k);
    nan = nan || a.nan(k) || b.nan(k) || (is_infinite && zero);
    if (is_infinite) infinite[a.negative(k) != b.negative(k)] = true;
  }
  if (nan || (infinite[0] && infinite[1])) return kNaN;
  return infinite[0] ? kInfinity : infinite[1] ? kInfinity | kSign : 0;
}

template <class Format>
unsigned accumulate_block(unsigned c, const Factors<Format>& a, const Factors<Format>& b, int begin) {
  constexpr int kGridBits = 23 + kExtraBits;  // below the largest exponent
  constexpr int kProductBits = 2 * Factors<Format>::kSignificandBits;
  static_assert(kGridBits >= kProductBits, "products are shifted left onto the grid");
  // A product is below 2^(kProductBits + 2), an aligned one below 2^(kGridBits + 2).
  static_assert(kGridBits + 2 + 4 <= 31 && kBlock == 1 << 4, "a sum of all fits in 32 bits");
  const int field = static_cast<int>(c >> 23) & 0xff;
  if (field == 0xff || !a.finite || !b.finite) {
    const unsigned special = special_sum(c, a, b, begin);
    if (special != 0) return special;
  }
  const int fraction = static_cast<int>((c & 0x7fffffu) | (field == 0 ? 0 : 0x800000u));
  const int c_exponent =
      fraction == 0 ? 2 * Factors<Format>::kZeroExponent : (field == 0 ? 1 : field) - 127;
  int largest = c_exponent;
  for (int k = begin; k < begin + kBlock; ++k) {
    const int exponent = a.exponent[k] + b.exponent[k];
    largest = exponent > largest ? exponent : largest;
  }
  const auto cut = [largest](int term, int exponent) {
    const int below = largest - exponent;
    return term >> (below > 31 ? 31 : below);
  };
  int sum = 0;
  for (int k = begin; k < begin + kBlock; ++k) {
    const int product = a.significand[k] * b.significand[k];
    const int magnitude = (product < 0 ? -product : product) << (kGridBits - kProductBits);
    const int term = cut(magnitude, a.exponent[k] + b.exponent[k]);
    sum += product < 0 ? -term : term;
  }
  const long long own = cut(fraction << kExtraBits, c_exponent);
  return truncate(c & kSign ? sum - own : sum + own, largest - kGridBits);
}

// Bits of c + sum of a[k] b[k], c in bits too: the launch may flush the host's subnormal numbers.
template <class Format>
unsigned accumulate(unsigned c, const Factors<Format>& a, const Factors<Format>& b) {
  static_assert(kDepth % kBlock == 0, "whole steps");
  for (int begin = 0; begin < kDepth; begin += kBlock) c = accumulate_block(c, a, b, begin);
  return c;
}

}  // namespace emu
