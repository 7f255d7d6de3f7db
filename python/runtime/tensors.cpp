#include "python/runtime/tensors.h"

#include <ATen/DLConvertor.h>
#include <fmt/format.h>

#include "decode_record/base/error.h"

namespace nb = nanobind;

namespace blockscope::python {
namespace {

constexpr const char* kFresh = "dltensor";      // names that DLPack gives to its capsules
constexpr const char* kUsed = "used_dltensor";  // after somebody took the tensor

/// Functions of torch. They are never freed, because tensors may be used until the process ends.
struct TorchFunctions {
  nb::object from_dlpack, to_dlpack, tensor, as_tensor;
};
const TorchFunctions& torch_functions() {
  static const auto* const functions = [] {
    const nb::module_ torch = nb::module_::import_("torch");
    return new TorchFunctions{torch.attr("_C").attr("_from_dlpack"),
                              torch.attr("_C").attr("_to_dlpack"), torch.attr("Tensor"),
                              torch.attr("as_tensor")};
  }();
  return *functions;
}

void release_unused(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kFresh) == 0) return;
  auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kFresh));
  managed->deleter(managed);
}

}  // namespace

nb::object to_python(const at::Tensor& tensor) {
  PyObject* const capsule = PyCapsule_New(at::toDLPack(tensor), kFresh, release_unused);
  return torch_functions().from_dlpack(nb::steal<nb::object>(capsule));
}

at::Tensor from_python(nb::handle value, const std::string& what) {
  const TorchFunctions& torch = torch_functions();
  nb::object tensor = nb::borrow(value);
  if (!nb::isinstance(value, torch.tensor)) {
    try {
      tensor = torch.as_tensor(value);
    } catch (nb::python_error& error) {
      throw Error(fmt::format(
          "{}: expected a tensor, or a list that torch.as_tensor takes, got {} "
          "({})",
          what, nb::inst_name(value).c_str(), nb::str(nb::handle(error.value())).c_str()));
    }
  }
  const nb::object capsule = torch.to_dlpack(tensor);
  auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kFresh));
  if (managed == nullptr) throw nb::python_error();
  at::Tensor shared = at::fromDLPack(managed);
  PyCapsule_SetName(capsule.ptr(), kUsed);
  return shared;
}

}  // namespace blockscope::python
