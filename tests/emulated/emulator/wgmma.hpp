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

inline unsigned visible_element(const GroupProduct& product, unsigned address) {
  const char* problem = shared_access_problem(address, 2);
  if (problem == nullptr) problem = proxy.problem(address);
  if (problem != nullptr) {
    record_failure("wgmma (%s:%d) reads byte %u of %zu bytes of shared memory: %s", product.site.file,
                   product.site.line, address, shared.size(), problem);
    abandon_thread();
  }
  unsigned short bits;
  memcpy(&bits, shared.data() + address, sizeof bits);
  return bits;
}

template <class Format>
void compute_group_product(const GroupProduct& product, float* d) {
  const unsigned thread = state.current->index;
  const unsigned lane = thread % kLanes;
  const unsigned first_row = thread / kLanes % 4 * 16 + lane / 4;
  Factors a[2];
  for (unsigned i = 0; i < 2; ++i) {
    a[i].finite = true;
    for (unsigned k = 0; k < kDepth; ++k) {
      unsigned bits;
      if (product.a_in_shared) {
        bits = visible_element(product, PanelOperand(product.a_bits).along(first_row + 8 * i, k));
      } else {
        // Registers 0 and 1 have the rows of k below 8, 2 and 3 those of the others; a lane has two of each.
        const unsigned pair = product.a[k % 8 / 2][i + k / 8 * 2];
        bits = k % 2 == 0 ? pair & 0xffffu : pair >> 16;
      }
      a[i].set<Format>(static_cast<int>(k), bits);
    }
  }
  const PanelOperand operand(product.b_bits);
  for (unsigned j = 0; j < product.tiles; ++j) {
    for (unsigned c = 0; c < 2; ++c) {
      const unsigned n = 8 * j + lane % 4 * 2 + c;
      Factors b;
      b.finite = true;
      for (unsigned k = 0; k < kDepth; ++k) {
        const unsigned address = product.transposed ? operand.across(k, n) : operand.along(n, k);
        b.set<Format>(static_cast<int>(k), visible_element(product, address));
      }
      for (unsigned i = 0; i < 2; ++i) {
        float& element = d[4 * j + 2 * i + c];
        unsigned sum = 0;
        if (product.adds) memcpy(&sum, &element, sizeof sum);
        sum = accumulate(sum, a[i], b);
        memcpy(&element, &sum, sizeof sum);
      }
    }
  }
}

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

inline GroupProducts group_products[kMaxThreads];

inline GroupProducts& own_group_products() { return group_products[state.current->index]; }

inline void fence_wgmma(Site site) {
  exchange("wgmma.fence", site, 0);
  own_group_products().begin();
}

inline void commit_wgmma() { own_group_products().commit(); }

inline void wait_wgmma(unsigned pending_groups) {
  count_step();
  own_group_products().wait(pending_groups);
}

// What the lanes of a warp bring to a product.
struct GroupOperand {
  unsigned a[4];
  unsigned long long descriptors[2];
};

inline void start_group_product(GroupProduct product, const unsigned* a) {
  GroupOperand own = {};
  if (a != nullptr) memcpy(own.a, a, sizeof own.a);
  own.descriptors[0] = product.a_bits;
  own.descriptors[1] = product.b_bits;
  const Deposits<GroupOperand> lanes = exchange("wgmma", product.site, own);
  const unsigned lane = lane_index();
  for (unsigned i = 0; i < 4; ++i) memcpy(product.a[i], lanes[lane / 4 * 4 + i].a, sizeof product.a[i]);
  const char* problem = PanelOperand::problem(product.b_bits);
  if (problem == nullptr && product.a_in_shared) problem = PanelOperand::problem(product.a_bits);
  for (unsigned i = 0; i < kLanes && problem == nullptr; ++i) {
    if (memcmp(lanes[i].descriptors, own.descriptors, sizeof own.descriptors) != 0)
      problem = "lanes differ in it";
  }
  if (problem != nullptr) {
    record_failure("wgmma (%s:%d), descriptor: %s", product.site.file, product.site.line, problem);
    abandon_thread();
  }
  if (!own_group_products().may_start(product)) {
    record_failure("wgmma (%s:%d): no wgmma.fence came before", product.site.file, product.site.line);
    abandon_thread();
  }
  if (own_group_products().full()) {
    record_failure("more than %u wgmma of one thread are pending", GroupProducts::kCapacity);
    abandon_thread();
  }
  own_group_products().start(product);
}

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
inline bool groups_agree() {
  constexpr unsigned kGroup = 4 * kLanes;
  for (unsigned thread = 0; thread < state.block_threads; ++thread) {
    const unsigned group = thread / kGroup;
    const GroupProducts& first = group_products[group * kGroup];
    const GroupProducts& own = group_products[thread];
    if (own.started() != first.started()) {
      record_failure("the warps of group %u issued %llu and %llu wgmma: all four take part in each", group,
                     first.started(), own.started());
      return false;
    }
    if (own.issued() != first.issued()) {
      record_failure("warps 0 and %u of group %u issued different wgmma, or with different descriptors",
                     thread % kGroup / kLanes, group);
      return false;
    }
    if (own.started() > 0 && (group + 1) * kGroup > state.block_threads) {
      record_failure("group %u has fewer than four warps: all four take part in each wgmma", group);
      return false;
    }
  }
  return true;
}

// Its sums would be read before they are there.
inline void require_no_product_pending() {
  if (own_group_products().empty()) return;
  record_failure("wgmma still pending at exit, without a wait");
  abandon_thread();
}

}  // namespace emu
