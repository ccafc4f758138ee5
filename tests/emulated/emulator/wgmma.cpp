#include "wgmma.hpp"

#include "memory.hpp"
#include "warp.hpp"

namespace emu {

GroupProducts group_products[kMaxThreads];

// Elements that lie in one piece of 16 bytes, as many as fill it or a part of it.
template <unsigned kElements>
static void read_visible(const GroupProduct& product, unsigned address, unsigned short* bits) {
  constexpr unsigned kBytes = kElements * sizeof *bits;
  const char* problem = shared_access_problem(address, kBytes);
  if (problem == nullptr) problem = proxy.problem(address);
  if (problem != nullptr) {
    record_failure("wgmma (%s:%d) reads byte %u of %zu bytes of shared memory: %s", product.site.file,
                   product.site.line, address, shared.size(), problem);
    abandon_thread();
  }
  memcpy(bits, shared.data() + address, kBytes);
}

template <class Format>
static void read_along(const GroupProduct& product, const PanelOperand& operand, unsigned r,
                       Factors<Format>& factors) {
  constexpr unsigned kPiece = 8;
  for (unsigned k = 0; k < kDepth; k += kPiece) read_visible<kPiece>(product, operand.along(r, k), factors.bits + k);
  factors.decode();
}

// Columns n and n + 1.
template <class Format>
static void read_columns(const GroupProduct& product, const PanelOperand& operand, unsigned n,
                         Factors<Format> (&b)[2]) {
  if (!product.transposed) {
    for (unsigned c = 0; c < 2; ++c) read_along(product, operand, n + c, b[c]);
    return;
  }
  for (unsigned k = 0; k < kDepth; ++k) {
    unsigned short bits[2];
    read_visible<2>(product, operand.across(k, n), bits);
    for (unsigned c = 0; c < 2; ++c) b[c].bits[k] = bits[c];
  }
  for (Factors<Format>& column : b) column.decode();
}

template <class Format>
void compute_group_product(const GroupProduct& product, float* d) {
  const unsigned thread = state.current->index;
  const unsigned lane = thread % kLanes;
  const unsigned first_row = thread / kLanes % 4 * 16 + lane / 4;
  Factors<Format> a[2];
  for (unsigned i = 0; i < 2; ++i) {
    if (product.a_in_shared) {
      read_along(product, PanelOperand(product.a_bits), first_row + 8 * i, a[i]);
      continue;
    }
    for (unsigned k = 0; k < kDepth; ++k) {
      // Registers 0 and 1 have the rows of k below 8, 2 and 3 those of the others; a lane has two of each.
      const unsigned pair = product.a[k % 8 / 2][i + k / 8 * 2];
      a[i].bits[k] = static_cast<unsigned short>(k % 2 == 0 ? pair : pair >> 16);
    }
    a[i].decode();
  }
  const PanelOperand operand(product.b_bits);
  for (unsigned j = 0; j < product.tiles; ++j) {
    Factors<Format> b[2];
    read_columns(product, operand, 8 * j + lane % 4 * 2, b);
    for (unsigned c = 0; c < 2; ++c) {
      for (unsigned i = 0; i < 2; ++i) {
        float& element = d[4 * j + 2 * i + c];
        unsigned sum = 0;
        if (product.adds) memcpy(&sum, &element, sizeof sum);
        sum = accumulate(sum, a[i], b[c]);
        memcpy(&element, &sum, sizeof sum);
      }
    }
  }
}

template void compute_group_product<Half>(const GroupProduct&, float*);
template void compute_group_product<Bfloat>(const GroupProduct&, float*);

static GroupProducts& own_group_products() { return group_products[state.current->index]; }

void fence_wgmma(Site site) {
  exchange("wgmma.fence", site, 0);
  own_group_products().begin();
}

void commit_wgmma() { own_group_products().commit(); }

// Other warps may run before: what they do to a place that is free too early must show.
void wait_wgmma(Site site, unsigned pending_groups) {
  wait(Stop{Status::at_collective, "wgmma.wait_group", site, pending_groups, nullptr});
  own_group_products().wait(pending_groups);
}

// What the lanes of a warp bring to a product.
struct GroupOperand {
  unsigned a[4];
  unsigned long long descriptors[2];
};

void start_group_product(GroupProduct product, const unsigned* a) {
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

bool groups_agree() {
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

void require_no_product_pending() {
  if (own_group_products().empty()) return;
  record_failure("wgmma still pending at exit, without a wait");
  abandon_thread();
}

}  // namespace emu
