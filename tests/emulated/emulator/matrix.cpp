#include "matrix.hpp"

#include <math.h>

#include "memory.hpp"
#include "warp.hpp"

namespace emu {

struct Fragment {
  unsigned pair[4];  // two 16-bit elements each, the first in the lower half
};

using MatrixLoad = Warp<unsigned, Fragment>;

static unsigned shared_element(unsigned row, unsigned column) {
  unsigned short bits;
  memcpy(&bits, shared.data() + row + column * sizeof bits, sizeof bits);
  return bits;
}

template <bool kTransposed>
bool complete_load_matrix(Thread* lanes) {
  const MatrixLoad warp(lanes);
  unsigned rows[kLanes];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    rows[lane] = warp.operand(lane);
    const char* problem = shared_access_problem(rows[lane]);
    if (problem == nullptr) continue;
    const Stop& stop = warp.stop();
    record_failure(
        "%s (%s:%d): row of lane %u of warp %u at byte %u of %zu bytes of shared memory: %s",
        stop.name, stop.site.file, stop.site.line, lane, warp.index(), rows[lane], shared.size(),
        problem);
    return false;
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned row = lane / 4;
    const unsigned pair = lane % 4 * 2;
    Fragment fragment;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned* matrix = rows + 8 * i;
      const unsigned low =
          kTransposed ? shared_element(matrix[pair], row) : shared_element(matrix[row], pair);
      const unsigned high = kTransposed ? shared_element(matrix[pair + 1], row)
                                        : shared_element(matrix[row], pair + 1);
      fragment.pair[i] = low | high << 16;
    }
    warp.answer(lane, fragment);
  }
  return true;
}

void load_matrix(const char* name, Site site, unsigned address, unsigned (&fragment)[4],
                 bool transposed) {
  const Fragment loaded =
      MatrixLoad::meet(name, site, address,
                       transposed ? &complete_load_matrix<true> : &complete_load_matrix<false>);
  memcpy(fragment, loaded.pair, sizeof fragment);
}

struct ProductOperand {
  unsigned a[4];
  unsigned b[2];
  unsigned c[4];
};

struct ProductResult {
  unsigned c[4];
};

using Product = Warp<ProductOperand, ProductResult>;

template <class Format>
bool complete_multiply_accumulate(Thread* lanes) {
  const Product warp(lanes);
  Factors<Format> a[16];  // the rows
  Factors<Format> b[8];   // the columns
  const auto set_pair = [](Factors<Format>& factors, unsigned k, unsigned bits) {
    factors.bits[k] = static_cast<unsigned short>(bits);
    factors.bits[k + 1] = static_cast<unsigned short>(bits >> 16);
  };
  ProductOperand operands[kLanes];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    operands[lane] = warp.operand(lane);
    const ProductOperand& own = operands[lane];
    const unsigned row = lane / 4;
    const unsigned pair = lane % 4 * 2;
    for (unsigned i = 0; i < 4; ++i) set_pair(a[row + i % 2 * 8], pair + i / 2 * 8, own.a[i]);
    for (unsigned i = 0; i < 2; ++i) set_pair(b[row], pair + i * 8, own.b[i]);
  }
  for (Factors<Format>& row : a) row.decode();
  for (Factors<Format>& column : b) column.decode();
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned row = lane / 4;
    const unsigned pair = lane % 4 * 2;
    ProductResult result;
    for (unsigned i = 0; i < 4; ++i)
      result.c[i] = accumulate(operands[lane].c[i], a[row + i / 2 * 8], b[pair + i % 2]);
    warp.answer(lane, result);
  }
  return true;
}

template <class Format>
void multiply_accumulate(const char* name, Site site, float (&c)[4], const unsigned (&a)[4],
                         unsigned b0, unsigned b1) {
  ProductOperand operand;
  memcpy(operand.a, a, sizeof operand.a);
  operand.b[0] = b0;
  operand.b[1] = b1;
  memcpy(operand.c, c, sizeof operand.c);
  const ProductResult result =
      Product::meet(name, site, operand, &complete_multiply_accumulate<Format>);
  memcpy(c, result.c, sizeof c);
}

template void multiply_accumulate<Half>(const char*, Site, float (&)[4], const unsigned (&)[4],
                                        unsigned, unsigned);
template void multiply_accumulate<Bfloat>(const char*, Site, float (&)[4], const unsigned (&)[4],
                                          unsigned, unsigned);

struct DoubleOperand {
  double a[8];
  double b[4];
};

void multiply_accumulate_double(Site site, double (&c)[4], const double (&a)[8],
                                const double (&b)[4]) {
  DoubleOperand own;
  memcpy(own.a, a, sizeof own.a);
  memcpy(own.b, b, sizeof own.b);
  const Deposits<DoubleOperand> lanes = exchange("mma of float64", site, own);
  const unsigned row = lane_index() / 4;
  const unsigned pair = lane_index() % 4 * 2;
  for (unsigned k = 0; k < kDepth; ++k) {
    const DoubleOperand left = lanes[row * 4 + k % 4];
    for (unsigned column = 0; column < 2; ++column) {
      const double right = lanes[(pair + column) * 4 + k % 4].b[k / 4];
      for (unsigned half = 0; half < 2; ++half) {
        double& element = c[2 * half + column];
        element = fma(left.a[k / 4 * 2 + half], right, element);
      }
    }
  }
}

}  // namespace emu
