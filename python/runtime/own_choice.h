// What the plugins of all kinds (policies, strategies, caches) share: facts and options of an entry
// in a table of choices, and objects of Python that C++ code keeps.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "probe/choices/own_option.h"
#include "probe/policies/policy_table.h"

namespace blockscope::python {

/// An object that the tables keep until the process ends. It may be copied without Python's lock.
class KeptObject {
 public:
  /// Call it with Python's lock.
  explicit KeptObject(nanobind::object object) : object_(object.release()) {}
  nanobind::object get() const { return nanobind::borrow(object_); }

 private:
  nanobind::handle object_;
};

/// name, meaning, source and example of `facts`; the digest of the plugin's file goes into the
/// settings of a trace, so a resumed run must have the same file. Throws UsageError for a name that
/// could not be written on the command line. `what`: "policy".
ChoiceFacts choice_facts(const std::string& what, const nanobind::dict& facts);
std::vector<OwnOption> own_options(const nanobind::dict& facts);
/// A plugin's option k is the k of all sparse policies, so studies can change it.
ChoiceOption<PolicyOptions> own_k(const OwnOption& own);
/// Throws UsageError if an option without a default was not given.
void check_given(const std::vector<OwnOption>& options, const OwnValues& given, bool has_k = false);
/// Positions: whole numbers from a list, a range, a NumPy array or a tensor. Throws Error.
std::vector<std::int64_t> whole_numbers_of(nanobind::handle given);
/// The indices of the flags that are true, ascending.
std::vector<std::int64_t> indices_of(const std::vector<bool>& flags);

/// The values as keywords of a call.
nanobind::dict own_keywords(const OwnValues& values);
/// A namespace with num_layers, num_heads, num_kv_heads and head_dim.
nanobind::object model_facts(const PolicyModel& model);

}  // namespace blockscope::python
