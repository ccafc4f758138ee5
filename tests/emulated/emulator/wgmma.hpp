// wgmma: products of four warps that run until a wait, and what they may read (PTX ISA, "wgmma.mma_async", "Matrix
// Descriptor Format", "Async proxy").
//
// Hardware reads shared memory at any moment between a product's issue and its wait. As with copies, the two
// extremes show different errors: a product at once may miss data that arrives later, one at its wait sees what has
// been overwritten meanwhile; its sums are NaN until then. And it doesn't see what a thread wrote before that thread
// has passed a proxy fence.
#pragma once

#include "matrix.hpp"
#include "proxy.hpp"

namespace emu {

// Panels of 64 columns, in rows of 128 bytes whose pieces of 16 are turned by the row.
class PanelOperand {
 public:
  explicit PanelOperand(unsigned long long bits)
      : start_(field(bits, 0)), leading_(field(bits, 16)), stride_(field(bits, 32)) {}

  // What is wrong with a descriptor; null if nothing that can be told.
  static const char* problem(unsigned long long bits) {
    if (bits >> 62 != 1) return "its layout isn't turned by 128 bytes";
    if ((bits >> 49 & 7u) != 0) return "its base offset isn't 0";
    return nullptr;
  }

  // Element k of row r, rows lying one after the other.
  unsigned along(unsigned r, unsigned k) const {
    return turned(start_ + r / 8 * stride_ + r % 8 * kRowBytes + k * 2);
  }

  // Element k of column n, where k counts rows.
  unsigned across(unsigned k, unsigned n) const {
    return turned(start_ + n / 64 * leading_ + k / 8 * stride_ + k % 8 * kRowBytes + n % 64 * 2);
  }

 private:
  static constexpr unsigned kRowBytes = 128;

  static unsigned field(unsigned long long bits, int first) {
    return static_cast<unsigned>(bits >> first & 0x3fffu) << 4;
  }
  static unsigned turned(unsigned address) { return address ^ ((address >> 7 & 7u) << 4); }

  unsigned start_;
  unsigned leading_;
  unsigned stride_;
};

// One product as a thread has issued it.
struct GroupProduct {
  Site site;
  float* d;  // [tiles][4]
  unsigned tiles;
  bool a_in_shared;
  unsigned a[4][4];  // fragments of the four lanes that share rows
  unsigned long long a_bits;
  unsigned long long b_bits;
  bool transposed;
  bool adds;
  unsigned long long group;
  void (*compute)(const GroupProduct&, float* d);
};

// For Half and Bfloat.
template <class Format>
void compute_group_product(const GroupProduct& product, float* d);

// What one thread has issued and not waited for, oldest first. Arrays of a fixed size, since sanitized builds have
// no C++ library.
class GroupProducts {
 public:
  void clear() {
    pending_ = 0;
    sums_ = 0;
    groups_ = 0;
    started_ = 0;
    issued_ = 0;
    begun_ = false;
  }

  bool empty() const { return pending_ == 0; }
  bool full() const { return pending_ == kCapacity; }
  unsigned long long started() const { return started_; }
  // A number that tells which products were issued, in which order.
  unsigned long long issued() const { return issued_; }

  // Whether a product may read its registers: a fence came since those of the last one that has ended were the
  // thread's again, or all that it reads are sums that another product adds to.
  bool may_start(const GroupProduct& product) const {
    return begun_ || (product.a_in_shared && is_pending(product.d));
  }

  void begin() { begun_ = true; }
  void commit() { ++groups_; }

  void start(GroupProduct product) {
    product.group = groups_;
    ++started_;
    note(product.a_bits);
    note(product.b_bits);
    note(static_cast<unsigned long long>(product.site.line));
    note(product.tiles * 4 + product.transposed * 2 + product.adds);
    if (state.copies_land_early) {
      product.compute(product, product.d);
    } else if (!is_pending(product.d)) {
      Sums& sums = sums_of_[sums_++];
      sums.d = product.d;
      sums.bytes = 4 * product.tiles * sizeof(float);
      memcpy(sums.value, product.d, sums.bytes);
      memset(product.d, 0xFF, sums.bytes);
    }
    products_[pending_++] = product;
  }

  void wait(unsigned pending_groups) {
    unsigned done = 0;
    for (; done < pending_; ++done) {
      const GroupProduct& product = products_[done];
      if (product.group + pending_groups >= groups_) break;
      if (!state.copies_land_early) product.compute(product, find(product.d).value);
    }
    for (unsigned i = done; i < pending_; ++i) products_[i - done] = products_[i];
    pending_ -= done;
    for (unsigned i = 0; i < sums_;) {
      Sums& sums = sums_of_[i];
      if (is_pending(sums.d)) {
        ++i;
        continue;
      }
      memcpy(sums.d, sums.value, sums.bytes);
      sums = sums_of_[--sums_];
    }
    if (done > 0 || pending_ == 0) begun_ = false;
  }

  static constexpr unsigned kCapacity = 128;

 private:
  static constexpr unsigned kMostTiles = 32;  // N is 256 at most

  // Sums while products that add to them are pending.
  struct Sums {
    float* d;
    size_t bytes;
    float value[4 * kMostTiles];
  };

  void note(unsigned long long part) { issued_ = (issued_ ^ part) * 1099511628211ull; }

  Sums& find(const float* d) {
    unsigned i = 0;
    while (sums_of_[i].d != d) ++i;
    return sums_of_[i];
  }

  bool is_pending(const float* d) const {
    for (unsigned i = 0; i < pending_; ++i)
      if (products_[i].d == d) return true;
    return false;
  }

  GroupProduct products_[kCapacity];
  Sums sums_of_[kCapacity];
  unsigned pending_ = 0;
  unsigned sums_ = 0;
  unsigned long long groups_ = 0;
  unsigned long long started_ = 0;
  unsigned long long issued_ = 0;
  bool begun_ = false;
};

extern GroupProducts group_products[kMaxThreads];

void fence_wgmma(Site site);
void commit_wgmma();
void wait_wgmma(Site site, unsigned pending_groups);

void start_group_product(GroupProduct product, const unsigned* a);

template <class Format, bool kTransposed, int kTiles>
void multiply_group(Site site, float (&d)[kTiles][4], const unsigned (&a)[4], unsigned long long b, bool adds) {
  start_group_product(GroupProduct{site, d[0], kTiles, false, {}, 0, b, kTransposed, adds, 0,
                                   &compute_group_product<Format>},
                      a);
}

template <class Format, int kTiles>
void multiply_group(Site site, float (&d)[kTiles][4], unsigned long long a, unsigned long long b, bool adds) {
  start_group_product(GroupProduct{site, d[0], kTiles, true, {}, a, b, false, adds, 0,
                                   &compute_group_product<Format>},
                      nullptr);
}

// Whether the warps of each four have issued the same products: hardware wants all four at each, with the same
// descriptors. False if not.
bool groups_agree();

// Its sums would be read before they are there.
void require_no_product_pending();

}  // namespace emu
