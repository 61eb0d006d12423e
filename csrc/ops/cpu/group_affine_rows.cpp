// The group-affine operators with a width for each row, on the CPU: each row is a call of the plain kernels.
#include "ops/group_affine_rows.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "codec/dispatch.h"
#include "ops/cpu/share.h"

namespace actcore::ops {
namespace {

// Where each row's codes begin, with -1 for a row whose width is none or whose codes end beyond the bytes there are.
// Returns whether every row is stored.
bool find_offsets(const RowWidths& widths) {
  bool fits = true;
  int64_t end = 0;
  int64_t used = -1;  // until a row reaches beyond the last byte
  for (int64_t row = 0; row < widths.rows; ++row) {
    const int width = row_width(widths, row);
    const int64_t begin = end;
    end += packed_bytes(widths.row_size, width);
    const bool stored = width > 0 && end <= widths.nbytes;
    widths.offsets[row] = stored ? begin : -1;
    if (end > widths.nbytes && used < 0) used = begin;
    fits &= stored;
  }
  widths.offsets[widths.rows] = used < 0 ? end : used;
  return fits;
}

// Calls work(row, first, last) for the groups of each row in begin..end, where all rows' groups are counted through.
template <class Work>
void for_each_row(const RowsCall& rows, int64_t begin, int64_t end, const Work& work) {
  while (begin < end) {
    const int64_t row = begin / rows.groups;
    const int64_t last = std::min(end, (row + 1) * rows.groups);
    work(row, begin - row * rows.groups, last - row * rows.groups);
    begin = last;
  }
}

// NaN `count` times.
void fill_nan(ElementType type, void* to, int64_t first, int64_t count) {
  with_type(type, [&]<class E>() {
    E* out = static_cast<E*>(to) + first;
    for (int64_t i = 0; i < count; ++i) store(out + i, static_cast<compute_t<E>>(NAN));
  });
}

template <class Key>
std::tuple<Tensor, Tensor, Tensor> group_affine_rows_compress(const Tensor& input, const Tensor& bits, int64_t nbytes,
                                                              int64_t group_size, bool stochastic, const Key& seed,
                                                              const Key& stream) {
  auto call = group_affine_rows_compress_call(input, bits, nbytes, group_size, stochastic, seed, stream);
  const RowsCall& rows = call.rows;
  const RowWidths& widths = rows.widths;
  const auto size = static_cast<int64_t>(input.element_size());
  call.args.key = read_key(call.args.key);
  *static_cast<int32_t*>(rows.misfit.mutable_data_ptr()) = !find_offsets(widths);
  const int64_t used = widths.offsets[widths.rows];
  expect_all_written(call.codes, nbytes);
  share_groups(widths.rows * rows.groups, group_size, [&](int64_t begin, int64_t end) {
    for_each_row(rows, begin, end, [&](int64_t row, int64_t first, int64_t last) {
      const int64_t offset = widths.offsets[row];
      if (offset < 0) {
        fill_nan(call.args.type, call.args.bounds, 2 * (row * rows.groups + first), 2 * (last - first));
        return;
      }
      const auto part = row_of(call.args, widths, row, row_width(widths, row), offset, size);
      cpu::kernels().group_affine_compress(part, first, last);
    });
  });
  if (nbytes > used) memset(call.args.codes + used, 0, static_cast<size_t>(nbytes - used));
  return {call.codes, call.bounds, rows.misfit};
}

std::tuple<Tensor, Tensor> group_affine_rows_decompress(const Tensor& codes, const Tensor& bounds, const Tensor& bits,
                                                        int64_t numel, int64_t group_size) {
  const auto call = group_affine_rows_decompress_call(codes, bounds, bits, numel, group_size);
  const RowsCall& rows = call.rows;
  const RowWidths& widths = rows.widths;
  const auto size = static_cast<int64_t>(call.output.element_size());
  *static_cast<int32_t*>(rows.misfit.mutable_data_ptr()) = !find_offsets(widths);
  expect_all_written(call.output, numel * size);
  share_groups(widths.rows * rows.groups, group_size, [&](int64_t begin, int64_t end) {
    for_each_row(rows, begin, end, [&](int64_t row, int64_t first, int64_t last) {
      const int64_t offset = widths.offsets[row];
      if (offset < 0) {
        const int64_t from = first * group_size, to = std::min(last * group_size, widths.row_size);
        fill_nan(call.args.type, call.args.output, row * widths.row_size + from, to - from);
        return;
      }
      const auto part = row_of(call.args, widths, row, row_width(widths, row), offset, size);
      cpu::kernels().group_affine_decompress(part, first, last);
    });
  });
  return {call.output, rows.misfit};
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
  using namespace actcore::ops;
  m.impl("group_affine_rows_compress", TORCH_BOX(&group_affine_rows_compress<int64_t>));
  m.impl("group_affine_rows_compress.tensor", TORCH_BOX(&group_affine_rows_compress<Tensor>));
  m.impl("group_affine_rows_decompress", TORCH_BOX(&group_affine_rows_decompress));
}
