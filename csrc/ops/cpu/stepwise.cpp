// The stepwise family on the CPU. Function values are torch's own, bit for bit: each thread gives torch's operator one
// chunk after the other and codes a chunk while it is in cache. Chunks are whole numbers of torch's vectors, so values
// are those that torch computes on one thread, for any number of threads.
#include <memory>
#include <tuple>

#include "codec/dispatch.h"
#include "cpu/fused.h"
#include "ops/cpu/aten.h"
#include "ops/cpu/share.h"
#include "ops/stepwise.h"

namespace actcore::ops {
namespace {

// A chunk of float32 takes 1 MiB: it is coded from the second or third level of cache. Smaller ones cost more in calls, of
// which each takes some 10 microseconds through the dispatcher.
constexpr int64_t kChunk = 262144;
// Up to kGrain elements there is one share and no parallel region around it, in which torch would start threads of its own
// above this number, and cut where it likes.
constexpr int64_t kLoneChunk = 16384;
// Shares and chunks are whole stretches, so that no byte of the guard belongs to two threads; and whole numbers of torch's
// vectors, of at most 64 elements, as torch computes what is left over with other instructions.
constexpr int64_t kUnit = kStretch;
static_assert(kUnit % 64 == 0 && kLoneChunk % kUnit == 0 && kChunk % kUnit == 0 && kGrain % kUnit == 0);

ScalarType compute_type(ElementType type) {
  return type == ElementType::kFloat64 ? ScalarType::Double : ScalarType::Float;
}

// The names of torch's operators; `whole` reads the input and writes the output, `middle` works in scratch memory.
struct TorchOperators {
  const char* whole = nullptr;
  const char* middle[2] = {nullptr, nullptr};
};

TorchOperators torch_operators(Function function) {
  switch (function) {
    case Function::kGelu:
    case Function::kGeluTanh: return {"aten::gelu"};
    case Function::kSilu: return {"aten::silu"};
    case Function::kMish: return {"aten::mish"};
    case Function::kSigmoid: return {"aten::sigmoid"};
    case Function::kTanh: return {"aten::tanh"};
    case Function::kHardsigmoid: return {"aten::hardsigmoid"};
    case Function::kHardswish: return {"aten::hardswish"};
    case Function::kLogsigmoid: return {"aten::log_sigmoid_forward"};
    case Function::kElu:
    case Function::kCelu:
    case Function::kSelu: return {nullptr, {"aten::expm1"}};
    case Function::kSoftplus: return {nullptr, {"aten::exp", "aten::log1p"}};
    case Function::kTanhshrink: return {nullptr, {"aten::tanh"}};
    case Function::kQuickGelu: return {nullptr, {"aten::sigmoid"}};
    default: return {};
  }
}

class Chunks {
 public:
  Chunks(const Stepwise& args, ScalarType type)
      : args_(args),
        type_(type),
        operators_(torch_operators(args.function)),
        size_(args.codes.numel > kGrain ? kChunk : kLoneChunk) {
    if (args.codes.numel < size_) size_ = args.codes.numel;
    if (operators_.middle[0] != nullptr || args.function == Function::kLogsigmoid) {
      scratch_ = std::make_unique<double[]>(static_cast<size_t>(size_));
    }
  }

  void operator()(int64_t begin, int64_t end) const {
    const auto& kernels = cpu::fused_kernels();
    for (int64_t i = begin; i < end; i += size_) {
      const int64_t count = std::min(size_, end - i);
      if (operators_.whole != nullptr) {
        whole(i, count);
      } else {
        middle(i, count);
      }
      kernels.stepwise_codes(args_.codes, i, i + count);
    }
  }

 private:
  const uint8_t* at(const void* memory, int64_t element) const {
    const int64_t width = args_.codes.type == ElementType::kFloat64   ? 8
                          : args_.codes.type == ElementType::kFloat32 ? 4
                                                                      : 2;
    return static_cast<const uint8_t*>(memory) + element * width;
  }

  void whole(int64_t begin, int64_t count) const {
    const Tensor from = borrow(at(args_.codes.input, begin), count, type_);
    const Tensor to = borrow(at(args_.output, begin), count, type_);
    if (args_.function == Function::kGelu) {
      call_torch(operators_.whole, "out", from, std::string("none"), to);
    } else if (args_.function == Function::kGeluTanh) {
      call_torch(operators_.whole, "out", from, std::string("tanh"), to);
    } else if (args_.function == Function::kLogsigmoid) {
      call_torch<2>(operators_.whole, "output", from, to, borrow(scratch_.get(), count, type_));
    } else {
      call_torch(operators_.whole, "out", from, to);
    }
  }

  void middle(int64_t begin, int64_t count) const {
    const auto& kernels = cpu::fused_kernels();
    if (operators_.middle[0] != nullptr) {
      kernels.function_before(args_, begin, count, scratch_.get());
      const Tensor scratch = borrow(scratch_.get(), count, compute_type(args_.codes.type));
      for (const char* name : operators_.middle) {
        if (name != nullptr) call_torch(name, "out", scratch, scratch);
      }
    }
    kernels.function_after(args_, begin, count, scratch_.get());
  }

  const Stepwise& args_;
  ScalarType type_;
  TorchOperators operators_;
  int64_t size_;
  std::unique_ptr<double[]> scratch_;
};

// Not on other devices, where it would wait for the kernels before.
void require_sorted(const char* op, const StepwiseCodes& args) {
  bool sorted = true, negative = false;
  const auto check = [&](const auto* boundaries) {
    for (int i = 0; i < args.boundary_count; ++i) sorted &= boundaries[i] >= boundaries[i > 0 ? i - 1 : 0];
    negative = args.boundary_count > 0 && boundaries[0] < 0;
  };
  if (args.type == ElementType::kFloat64) {
    check(static_cast<const double*>(args.boundaries));
  } else {
    check(static_cast<const float*>(args.boundaries));
  }
  require(sorted, op, "boundaries must ascend and not be NaN; sort them");
  require(!(args.even && negative), op, "boundaries of an even table are of |x| and must be at least 0");
}

std::tuple<Tensor, Tensor> stepwise(const Tensor& input, std::string function, std::vector<double> parameters,
                                    const Tensor& boundaries, int64_t bits, bool even, std::string guard) {
  const auto call = stepwise_call(input, function, parameters, boundaries, bits, even, guard);
  expect_all_written(call.output, input.numel() * static_cast<int64_t>(input.element_size()));
  require_sorted("stepwise", call.args.codes);
  cpu::fused_kernels();
  share_and_rethrow(input.numel(), kUnit, kGrain,
                    [&](int64_t begin, int64_t end) { Chunks(call.args, input.scalar_type())(begin, end); });
  return {call.output, call.codes};
}

Tensor stepwise_codes(const Tensor& input, const Tensor& boundaries, int64_t bits, bool even, std::string guard) {
  const auto call = stepwise_codes_call("stepwise_codes", input, boundaries, bits, even, guard);
  require_sorted("stepwise_codes", call.args);
  const auto& kernels = cpu::fused_kernels();
  share(call.args.numel, kUnit, kGrain,
        [&](int64_t begin, int64_t end) { kernels.stepwise_codes(call.args, begin, end); });
  return call.codes;
}

Tensor stepwise_backward(const Tensor& gradient, const Tensor& codes, const Tensor& levels, int64_t bits,
                         bool guarded) {
  const auto call = stepwise_backward_call(gradient, codes, levels, bits, guarded);
  expect_all_written(call.output, gradient.numel() * static_cast<int64_t>(gradient.element_size()));
  const auto& kernels = cpu::fused_kernels();
  share(call.args.numel, kUnit, kGrain,
        [&](int64_t begin, int64_t end) { kernels.stepwise_backward(call.args, begin, end); });
  return call.output;
}

}  // namespace
}  // namespace actcore::ops

STABLE_TORCH_LIBRARY_IMPL(actcore, CPU, m) {
  using namespace actcore::ops;
  m.impl("stepwise", TORCH_BOX(&stepwise));
  m.impl("stepwise_codes", TORCH_BOX(&stepwise_codes));
  m.impl("stepwise_backward", TORCH_BOX(&stepwise_backward));
}
