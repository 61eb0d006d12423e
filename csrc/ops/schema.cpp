// Every operator of the library, in one place. Shapes: tensors are flat unless a line says otherwise; `input` may have
// any shape but is contiguous, and is read in memory order. Fake kernels and autograd rules: actcore/ops.py.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(actcore, m) {
  // codes: uint8 (ceil(bits * numel / 8)); bounds: (groups, 2) in input's dtype.
  m.def(
      "group_affine_compress(Tensor input, int bits, int group_size, bool stochastic, int seed, int stream)"
      " -> (Tensor codes, Tensor bounds)");
  // (numel) in the dtype of bounds.
  m.def("group_affine_decompress(Tensor codes, Tensor bounds, int numel, int bits, int group_size) -> Tensor");

  // uint8 codes below 2^bits, end to end; misfit: int32 (1), not 0 where a code was too large.
  m.def("pack_bits(Tensor codes, int bits) -> (Tensor packed, Tensor misfit)");
  m.def("unpack_bits(Tensor packed, int bits, int numel) -> Tensor");

  // One bit an element, 1 for `high`; misfit: int32 (1), not 0 where an element was neither low nor high. Every byte of a
  // bool tensor but 0 is true.
  m.def("bit_mask_compress(Tensor input, float low, float high) -> (Tensor mask, Tensor misfit)");
  m.def("bit_mask_decompress(Tensor mask, int numel, ScalarType dtype, float low, float high) -> Tensor");

  // One bit an element, 1 where it is positive or NaN.
  m.def("positive_mask(Tensor input) -> Tensor");
}
