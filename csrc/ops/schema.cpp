// Every operator of the library, in one place. Shapes: tensors are flat unless a line says otherwise; `input` may have
// any shape but is contiguous, and is read in memory order. Fake kernels and autograd rules: actcore/ops.py.
#include <torch/csrc/stable/library.h>

//
// A length or a shape that follows from a tensor's is a SymInt: of an int each value would compile a graph of its own.
// The overloads named `tensor` take the key of the noise as int64 tensors of one element on the input's device; those
// named `graph` are for the graphs of compiled code, which run below autograd: unlike the others they have no kernel in
// Python that refuses gradients, of the key of the noise the stream is such a tensor, and each returns one tensor.
STABLE_TORCH_LIBRARY(actcore, m) {
  // codes: uint8 (ceil(bits * numel / 8)); bounds: (groups, 2) in input's dtype.
  m.def(
      "group_affine_compress(Tensor input, int bits, int group_size, bool stochastic, int seed, int stream)"
      " -> (Tensor codes, Tensor bounds)");
  m.def(
      "group_affine_compress.tensor(Tensor input, int bits, int group_size, bool stochastic, Tensor seed,"
      " Tensor stream) -> (Tensor codes, Tensor bounds)");
  // payload: uint8; the codes, zeros up to the next multiple of a group's two bounds, and the bounds.
  m.def(
      "group_affine_compress.graph(Tensor input, int bits, int group_size, bool stochastic, int seed, Tensor stream)"
      " -> Tensor payload");
  // The same of the elements as `clamp` from least to most leaves them.
  m.def(
      "group_affine_clamped_compress(Tensor input, int bits, int group_size, bool stochastic, int seed, int stream,"
      " float least, float most) -> (Tensor codes, Tensor bounds)");
  // The same of the elements less their mean and over their deviation, rounded to input's dtype. statistics_found:
  // the input's means, and its deviations in the second row; (2, statistics) in the dtype that input is computed in.
  // With channels last, `inner` rows of `channels` elements share statistics, each of which is of as many channels as it
  // takes; otherwise channels is 0, and `inner` elements end to end have one statistic, the next the next, and after the
  // last the first. group_size is at most 4096. Of statistics, what devices find differs by rounding; of codes and
  // bounds, nothing does that follow from the same statistics.
  m.def(
      "group_affine_standardized_compress(Tensor input, int bits, int group_size, bool stochastic, int seed,"
      " int stream, SymInt statistics, SymInt inner, SymInt channels)"
      " -> (Tensor codes, Tensor bounds, Tensor statistics_found)");
  // Back, times the deviation and plus the mean; (numel) in the dtype of bounds.
  m.def(
      "group_affine_standardized_decompress(Tensor codes, Tensor bounds, Tensor statistics, SymInt numel,"
      " SymInt inner, SymInt channels, int bits, int group_size) -> Tensor");
  // The same by statistics that the caller has: means, and by what elements less their mean are multiplied; each (count)
  // in the dtype that input is computed in. Writes codes, bounds and statistics as the other overload returns them, with
  // the inverse of a factor in the place of a deviation.
  m.def(
      "group_affine_standardized_compress.given(Tensor input, int bits, int group_size, bool stochastic, int seed,"
      " int stream, Tensor means, Tensor factors, SymInt inner, SymInt channels, Tensor(a!) codes, Tensor(b!) bounds,"
      " Tensor(c!) statistics) -> ()");
  // What follows a normalization, in one pass: elements as they were normalized, times scales, plus shifts, plus `added`,
  // through function; each result is rounded to the dtype of bounds. scales and shifts: (count) in the dtype that elements
  // are computed in, one for each statistic of the order that count, inner and channels say. added: (numel) in the dtype of
  // bounds, in memory order. function: none, relu, silu, gelu or gelu_tanh.
  m.def(
      "group_affine_standardized_activation(Tensor codes, Tensor bounds, Tensor scales, Tensor shifts, Tensor? added,"
      " SymInt numel, SymInt inner, SymInt channels, int bits, int group_size, str function) -> Tensor");
  // wide: int32 (1), not 0 where codes would leave nothing of most elements of a group: it has no finite bounds, or at
  // least two elements, a sixteenth of all and a quarter of those between the bounds, are not zero and below a
  // thousandth of the range. On the CPU alone: elsewhere nobody waits for the answer.
  m.def("has_wide_group(Tensor input, int group_size) -> Tensor");
  // (numel) in the dtype of bounds.
  m.def("group_affine_decompress(Tensor codes, Tensor bounds, SymInt numel, int bits, int group_size) -> Tensor");
  // dtype: of the elements.
  m.def(
      "group_affine_decompress.graph(Tensor payload, SymInt numel, ScalarType dtype, int bits, int group_size)"
      " -> Tensor");

  // A width of 1 to 8 for each row; `bits`: uint8, int32 or int64 (rows), where a row is numel / rows elements. Groups
  // end with their row, and each row's codes begin on a byte. codes: uint8 (nbytes), zeros behind the last row;
  // bounds: (rows * groups of a row, 2). misfit: int32 (1), not 0 where a row was not stored, because its width is out
  // of 1..8 or its codes end beyond nbytes; such a row decompresses to NaN.
  m.def(
      "group_affine_rows_compress(Tensor input, Tensor bits, SymInt nbytes, int group_size, bool stochastic, int seed,"
      " int stream) -> (Tensor codes, Tensor bounds, Tensor misfit)");
  m.def(
      "group_affine_rows_compress.tensor(Tensor input, Tensor bits, SymInt nbytes, int group_size, bool stochastic,"
      " Tensor seed, Tensor stream) -> (Tensor codes, Tensor bounds, Tensor misfit)");
  m.def(
      "group_affine_rows_decompress(Tensor codes, Tensor bounds, Tensor bits, SymInt numel, int group_size)"
      " -> (Tensor output, Tensor misfit)");

  // format: float8_e4m3fn or float8_e5m2; codes: uint8 (numel), of that format; bounds: (groups) in input's dtype.
  m.def(
      "float8_compress(Tensor input, ScalarType format, int group_size, bool stochastic, int seed, int stream)"
      " -> (Tensor codes, Tensor bounds)");
  m.def(
      "float8_compress.tensor(Tensor input, ScalarType format, int group_size, bool stochastic, Tensor seed,"
      " Tensor stream) -> (Tensor codes, Tensor bounds)");
  m.def("float8_decompress(Tensor codes, Tensor bounds, ScalarType format, int group_size) -> Tensor");

  // Integers from low to high; packed: uint8 (ceil(bits * numel / 8)), bits the length of high - low; misfit: int32
  // (1), not 0 where an element was out of the range.
  m.def("narrow_compress(Tensor input, int low, int high) -> (Tensor packed, Tensor misfit)");
  m.def("narrow_decompress(Tensor packed, SymInt numel, ScalarType dtype, int low, int high) -> Tensor");

  // uint8 codes below 2^bits, end to end; misfit: int32 (1), not 0 where a code was too large.
  m.def("pack_bits(Tensor codes, int bits) -> (Tensor packed, Tensor misfit)");
  m.def("unpack_bits(Tensor packed, int bits, SymInt numel) -> Tensor");

  // One bit an element, 1 for `high`; misfit: int32 (1), not 0 where an element was neither low nor high. Every byte of a
  // bool tensor but 0 is true.
  m.def("bit_mask_compress(Tensor input, float low, float high) -> (Tensor mask, Tensor misfit)");
  m.def("bit_mask_compress.graph(Tensor input, float low, float high) -> Tensor mask");
  m.def("bit_mask_decompress(Tensor mask, SymInt numel, ScalarType dtype, float low, float high) -> Tensor");
  m.def("bit_mask_decompress.graph(Tensor mask, SymInt numel, ScalarType dtype, float low, float high) -> Tensor");

  // One bit an element, 1 where it is positive or NaN.
  m.def("positive_mask(Tensor input) -> Tensor");
  m.def("positive_mask.graph(Tensor input) -> Tensor");

  // y = relu(x) in input's shape, and one bit an element: 1 where the gradient passes.
  m.def("relu_mask(Tensor input) -> (Tensor output, Tensor mask)");
  // Noise of (seed + draw, stream, position); draw: int64 (1) on input's device. mask: 1 where an element is kept.
  m.def("dropout_mask(Tensor input, float p, int seed, int stream, Tensor? draw=None) -> (Tensor output, Tensor mask)");
  // gradient * scale where the bit is 1, 0 elsewhere.
  m.def("mask_backward(Tensor gradient, Tensor mask, float scale) -> Tensor");

  // y = function(x), and `bits` bits an element: how many boundaries are not above x, or above |x| if even. boundaries
  // and levels: sorted, float32, or float64 for elements of float64. guard: none, nan or nonfinite; with one, behind the
  // codes lies a byte for each 1024 elements, 1 where one of them is NaN or, for nonfinite, infinite.
  m.def(
      "stepwise(Tensor input, str function, float[] parameters, Tensor boundaries, int bits, bool even=False,"
      " str guard=\"none\") -> (Tensor output, Tensor codes)");
  m.def("stepwise_codes(Tensor input, Tensor boundaries, int bits, bool even=False, str guard=\"none\") -> Tensor");
  // gradient * levels[code]; guarded: NaN where the byte behind the codes is not 0.
  m.def("stepwise_backward(Tensor gradient, Tensor codes, Tensor levels, int bits, bool guarded=False) -> Tensor");
  // One of the two levels around each derivative, chosen so that the expected level is the derivative; codes, noise and
  // guard as above, the guard of derivative and input.
  m.def(
      "level_codes(Tensor derivative, Tensor input, Tensor levels, int bits, int seed, int stream, Tensor? draw=None,"
      " str guard=\"none\") -> Tensor");

  // Over the last 1 to 3 dimensions, as many as kernel has numbers; packed: the place of each maximum in its window, in
  // ceil(log2(window)) bits, at least 1.
  m.def(
      "max_pool(Tensor input, int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode)"
      " -> (Tensor output, Tensor packed)");
  m.def(
      "max_pool_backward(Tensor gradient, Tensor packed, SymInt[] input_shape, int[] kernel, int[] stride,"
      " int[] padding, int[] dilation, bool ceil_mode) -> Tensor");
  // From and to the int64 indices of torch's max_pool; misfit: int32 (1), not 0 where one is not in its window. Of
  // a window that covers no element the index is -1.
  m.def(
      "window_index_pack(Tensor indices, SymInt[] input_shape, int[] kernel, int[] stride, int[] padding,"
      " int[] dilation, bool ceil_mode) -> (Tensor packed, Tensor misfit)");
  m.def(
      "window_index_unpack(Tensor packed, SymInt[] input_shape, int[] kernel, int[] stride, int[] padding,"
      " int[] dilation, bool ceil_mode) -> Tensor");

  // Notes that a region runs, and returns its stream. Compiled code calls region_stream, whose schema is in
  // actcore/ops.py: it has a tag.
  m.def("enter_region(int region, int[] sizes) -> int");
}
