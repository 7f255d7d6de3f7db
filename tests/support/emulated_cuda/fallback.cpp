// Every operator that the device has no kernel of its own for. What its results look like is found
// out with Meta tensors; the operator itself is queued: the CPU's, over aliases of the same bytes.
// Where Meta can't give the shape (it depends on values, or there is no Meta kernel), the stream
// runs to this point and the operator with it.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/support/emulated_cuda/boxed_values.h"
#include "tests/support/emulated_cuda/generator.h"
#include "tests/support/emulated_cuda/host_alias.h"
#include "tests/support/emulated_cuda/streams.h"

namespace blockscope::emulated_cuda {
namespace {

using c10::IValue;
using torch::jit::Stack;

/// Operators whose result depends on values in its shape, or is a value: a GPU's host waits for
/// them, too.
bool depends_on_values(const std::string& name) {
  static const std::set<std::string> names{"aten::nonzero",
                                           "aten::nonzero.out",
                                           "aten::masked_select",
                                           "aten::masked_select.out",
                                           "aten::equal",
                                           "aten::_unique",
                                           "aten::_unique2",
                                           "aten::unique_dim",
                                           "aten::unique_consecutive",
                                           "aten::bincount",
                                           "aten::repeat_interleave.Tensor"};
  return names.contains(name);
}

/// Arguments that index a tensor of the device and may be on the CPU.
bool may_be_on_the_cpu(const std::string& name, const std::string& argument) {
  if (!name.starts_with("aten::")) return true;  // our own operators check for themselves
  return argument == "indices" &&
         (name.starts_with("aten::index") || name.starts_with("aten::_index_put_impl") ||
          name.starts_with("aten::_unsafe_index"));
}

bool shares(const c10::AliasInfo* a, const c10::AliasInfo* b) {
  return a != nullptr && b != nullptr && a->beforeSets() == b->beforeSets();
}

/// Calls the kernel of one backend. What an out= operator returns are references to its arguments,
/// which the boxing drops before it reads them: they must outlive the call.
void call_backend(const c10::OperatorHandle& op, c10::DispatchKey key, Stack& stack) {
  const Stack alive = stack;
  op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack)
      : op_(op), schema_(op.schema()), name_(toString(op.operator_name())), stack_(stack) {
    const auto args = torch::jit::last(stack, schema_.arguments().size());
    args_.assign(args.begin(), args.end());
  }

  void run() {
    ++mutable_counters().operators;
    check_devices();
    by_value_ = depends_on_values(name_) || selects_by_mask();
    Stack results;
    if (is_view()) {
      ++mutable_counters().views;
      results = view();
    } else if (std::optional<Stack> shapes = infer()) {
      results = prepare_results(*shapes);
      queue(results);
    } else {
      results = run_now();
    }
    torch::jit::drop(stack_, args_.size());
    for (IValue& each : results) stack_.push_back(std::move(each));
  }

 private:
  const c10::AliasInfo* alias_of_argument(size_t i) const {
    return schema_.arguments()[i].alias_info();
  }
  const c10::AliasInfo* alias_of_return(size_t i) const {
    return schema_.returns()[i].alias_info();
  }

  void check_devices() const {
    for (size_t i = 0; i < args_.size(); ++i) {
      const bool written = alias_of_argument(i) != nullptr && alias_of_argument(i)->isWrite();
      for_each_tensor(args_[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined() || tensor.is_cuda()) return;
        const bool number = tensor.dim() == 0 && !written;
        if (number || may_be_on_the_cpu(name_, schema_.arguments()[i].name())) return;
        TORCH_CHECK(
            false,
            "Expected all tensors to be on the same device, but found at least two devices, "
            "cuda:0 and ",
            tensor.device(), "! (when checking argument for argument ",
            schema_.arguments()[i].name(), " in method ", name_, ")");
      });
    }
  }

  /// Whether a mask is among the indices of index or index_put_: the host counts what it selects.
  /// (A GPU fills by a mask without that, where the value is a number.)
  bool selects_by_mask() const {
    const bool puts = name_.starts_with("aten::_index_put_impl");
    if (!puts && !name_.starts_with("aten::index.")) return false;
    if (puts && args_[2].toTensor().numel() == 1) return false;
    bool found = false;
    for_each_tensor(args_[1], [&](const at::Tensor& index) {
      found = found || (index.defined() &&
                        (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte));
    });
    return found;
  }

  /// Arguments for the CPU. Those of the host are copied, as a kernel's parameters are.
  Stack host_arguments(HostAliases& aliases) const {
    Stack made;
    for (size_t i = 0; i < args_.size(); ++i) {
      made.push_back(plain(args_[i], c10::kCPU, [&](const at::Tensor& tensor) {
        return tensor.is_cuda() ? aliases.of(tensor) : copy_of_host(tensor);
      }));
      if (args_[i].isNone() && schema_.arguments()[i].name() == "generator") {
        made.back() = host_generator(default_generator());
      }
    }
    return made;
  }

  static at::Tensor copy_of_host(const at::Tensor& tensor) {
    at::Tensor copy = tensor.clone();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return copy;
  }

  template <class Replace>
  IValue plain(const IValue& value, c10::DeviceType device, const Replace& replace) const {
    if (value.isDevice() && value.toDevice().is_cuda()) return IValue(c10::Device(device));
    if (value.isGenerator()) return IValue(host_generator(value.toGenerator()));
    return map_tensors(value, replace);
  }

  bool is_view() const {
    for (const auto& each : schema_.returns()) {
      if (each.alias_info() != nullptr && !each.alias_info()->isWrite()) return true;
    }
    return false;
  }

  /// Views touch no memory: the CPU's answer over the alias says what it looks like.
  Stack view() const {
    HostAliases aliases;
    Stack made = host_arguments(aliases);
    call_backend(op_, c10::DispatchKey::CPU, made);
    const at::Tensor& base = args_.front().toTensor();
    for (IValue& each : made) {
      each = map_tensors(each, [&](const at::Tensor& like) {
        TORCH_CHECK(like.storage().data() == aliases.of(base).storage().data(),
                    "emulated CUDA: ", name_, " made no view");
        return device_view(base, like);
      });
    }
    return made;
  }

  static at::Tensor meta_of(const at::Tensor& tensor) {
    // The host's numbers stay what they are, as types are promoted by their values' kind.
    if (!tensor.is_cuda() && tensor.dim() == 0) return tensor;
    at::Tensor meta =
        at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return meta;
  }

  bool returns_only_what_it_writes() const {
    for (const auto& each : schema_.arguments()) {
      if (each.alias_info() != nullptr && each.kwarg_only()) return false;  // out=: may be resized
    }
    for (const auto& each : schema_.returns()) {
      if (each.alias_info() == nullptr) return false;
    }
    return true;
  }

  /// The results as Meta tensors; none: they can't be known before.
  std::optional<Stack> infer() const {
    if (by_value_) return std::nullopt;
    for (const auto& each : schema_.returns()) {
      const auto kind = each.type()->kind();
      if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return std::nullopt;
    }
    if (!op_.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
      if (!returns_only_what_it_writes()) return rehearse();
      Stack same;
      for (size_t i = 0; i < schema_.returns().size(); ++i) same.push_back(written_argument(i));
      return same;
    }
    std::unordered_map<const c10::TensorImpl*, at::Tensor> metas;
    Stack made;
    for (const IValue& each : args_) {
      made.push_back(plain(each, c10::kMeta, [&](const at::Tensor& tensor) {
        at::Tensor& meta = metas[tensor.unsafeGetTensorImpl()];
        if (!meta.defined()) meta = meta_of(tensor);
        return meta;
      }));
    }
    try {
      call_backend(op_, c10::DispatchKey::Meta, made);
    } catch (const c10::Error&) {
      return rehearse();
    }
    return made;
  }

  /// The results' shapes by the CPU's operator over zeros, where they don't depend on values.
  std::optional<Stack> rehearse() const {
    Stack made;
    for (size_t i = 0; i < args_.size(); ++i) {
      made.push_back(plain(args_[i], c10::kCPU, [](const at::Tensor& tensor) {
        return at::zeros(tensor.sizes(), tensor.options().device(c10::kCPU));
      }));
      if (is_out_argument(i))
        made.back() = at::empty({0}, args_[i].toTensor().options().device(c10::kCPU));
    }
    try {
      call_backend(op_, c10::DispatchKey::CPU, made);
    } catch (const c10::Error&) {
      return std::nullopt;  // a wrong argument: said again by the operator itself
    }
    return made;
  }

  bool is_out_argument(size_t i) const {
    const auto& argument = schema_.arguments()[i];
    return argument.alias_info() != nullptr && argument.kwarg_only() && args_[i].isTensor();
  }

  const IValue& written_argument(size_t result) const {
    for (size_t i = 0; i < args_.size(); ++i) {
      if (shares(alias_of_argument(i), alias_of_return(result))) return args_[i];
    }
    TORCH_CHECK(false, "emulated CUDA: ", name_, " returns an argument that it doesn't name");
  }

  Stack prepare_results(const Stack& shapes) const {
    Stack results;
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      if (alias_of_return(i) == nullptr) {
        results.push_back(map_tensors(shapes[i], [](const at::Tensor& like) {
          return empty_on_device(like.sizes(), like.strides(), like.scalar_type());
        }));
        continue;
      }
      const IValue& argument = written_argument(i);
      if (argument.isTensor() && shapes[i].isTensor()) {
        resize_on_device(argument.toTensor(), shapes[i].toTensor().sizes());
      }
      results.push_back(argument);
    }
    return results;
  }

  void queue(const Stack& results) const {
    HostAliases aliases;
    Stack arguments = host_arguments(aliases);
    std::vector<std::vector<at::Tensor>> fresh(results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      if (alias_of_return(i) != nullptr) continue;
      for_each_tensor(results[i],
                      [&](const at::Tensor& tensor) { fresh[i].push_back(aliases.of(tensor)); });
    }
    enqueue(current_stream_id(), [op = op_, arguments, fresh, name = name_] {
      const at::AutoDispatchBelowADInplaceOrView guard;
      Stack made = arguments;
      call_backend(op, c10::DispatchKey::CPU, made);
      for (size_t i = 0; i < fresh.size(); ++i) {
        size_t next = 0;
        if (fresh[i].empty()) continue;
        for_each_tensor(made[i], [&](const at::Tensor& tensor) {
          const at::Tensor& target = fresh[i][next++];
          if (!target.defined()) return;
          TORCH_CHECK(target.sizes() == tensor.sizes() && target.dtype() == tensor.dtype(),
                      "emulated CUDA: ", name, ": Meta expected ", target.sizes(), " ",
                      target.dtype(), ", the CPU made ", tensor.sizes(), " ", tensor.dtype());
          target.copy_(tensor);
        });
      }
    });
  }

  Stack run_now() const {
    const int64_t stream = current_stream_id();
    if (name_.starts_with("aten::index.")) {
      run_stream(stream);  // it called nonzero before, which was counted
    } else if (by_value_) {
      host_wait(stream, name_);
    } else {
      ++mutable_counters().uncommon[name_];
      run_stream(stream);
    }
    HostAliases aliases;
    Stack made = host_arguments(aliases);
    // The CPU's operator may have to resize an out=, which an alias can't.
    for (size_t i = 0; i < args_.size(); ++i) {
      if (is_out_argument(i))
        made[i] = at::empty({0}, args_[i].toTensor().options().device(c10::kCPU));
    }
    call_backend(op_, c10::DispatchKey::CPU, made);
    Stack results;
    for (size_t i = 0; i < made.size(); ++i) results.push_back(to_device(i, made[i]));
    run_stream(stream);  // the copies to the results
    return results;
  }

  IValue to_device(size_t result, const IValue& value) const {
    if (alias_of_return(result) != nullptr) {
      const IValue& argument = written_argument(result);
      if (argument.isTensor() && is_out(result)) {
        resize_on_device(argument.toTensor(), value.toTensor().sizes());
        copy_on_stream(argument.toTensor(), value.toTensor(), true);
      }
      return argument;
    }
    return map_tensors(value, [](const at::Tensor& tensor) {
      const at::Tensor made =
          empty_on_device(tensor.sizes(), tensor.strides(), tensor.scalar_type());
      copy_on_stream(made, tensor, true);
      return made;
    });
  }

  bool is_out(size_t result) const {
    for (const auto& each : schema_.arguments()) {
      if (shares(each.alias_info(), alias_of_return(result))) return each.kwarg_only();
    }
    return false;
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  std::string name_;
  Stack& stack_;
  std::vector<IValue> args_;
  bool by_value_ = false;
};

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const std::scoped_lock lock(device_mutex());
  const at::AutoDispatchBelowADInplaceOrView guard;
  Call(op, *stack).run();
}

}  // namespace
}  // namespace blockscope::emulated_cuda

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&blockscope::emulated_cuda::fallback>());
}
