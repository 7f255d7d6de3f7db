#include "python/runtime/own_choice.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "decode_record/base/error.h"

namespace nb = nanobind;

namespace blockscope::python {
namespace {

nlohmann::json json_of(nb::handle value) {
  if (value.is_none()) return {};
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
  if (nb::isinstance<nb::int_>(value)) return nb::cast<int64_t>(value);
  if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
  return nb::cast<std::string>(value);
}

nb::object python_of(const nlohmann::json& value) {
  if (value.is_boolean()) return nb::bool_(value.get<bool>());
  if (value.is_number_integer()) return nb::int_(value.get<int64_t>());
  if (value.is_number_float()) return nb::float_(value.get<double>());
  const auto text = value.get<std::string>();
  return nb::str(text.c_str(), text.size());
}

}  // namespace

ChoiceFacts choice_facts(const std::string& what, const nb::dict& facts) {
  const auto text = [&](const char* name) { return nb::cast<std::string>(facts[name]); };
  ChoiceFacts choice{text("name"), text("meaning"), text("source"), text("example")};
  check_own_name(what, choice.name);
  choice.settings[choice.name + "_sha256"] = text("sha256");
  return choice;
}

std::vector<OwnOption> own_options(const nb::dict& facts) {
  std::vector<OwnOption> options;
  for (const nb::handle item : nb::cast<nb::list>(facts["options"])) {
    const auto one = nb::cast<nb::dict>(item);
    OwnOption& option = options.emplace_back();
    option.name = nb::cast<std::string>(one["name"]);
    check_own_name("option", option.name);
    option.meaning = nb::cast<std::string>(one["meaning"]);
    option.kind = parse_own_kind(nb::cast<std::string>(one["kind"]));
    option.initial = json_of(one["initial"]);
  }
  return options;
}

ChoiceOption<PolicyOptions> own_k(const OwnOption& own) {
  ChoiceOption<PolicyOptions> option = whole_option("k", &PolicyOptions::k, 1, own.meaning.c_str());
  return own.initial.is_null() ? option : with_default(std::move(option), own_text(own.initial));
}

void check_given(const std::vector<OwnOption>& options, const OwnValues& given, bool has_k) {
  for (const OwnOption& option : options) {
    const bool is_k = option.name == "k" && has_k;
    if (!option.initial.is_null() || option.kind == OwnOption::Kind::on || is_k ||
        given.contains(option.name)) {
      continue;
    }
    throw UsageError(fmt::format("expected {0}, which has no default, got none. HINT: {0}={1}",
                                 option.name, own_range(option.kind)));
  }
}

std::vector<int64_t> whole_numbers_of(nb::handle given) {
  static const auto* const read =
      new nb::object(nb::module_::import_("blockscope._arguments").attr("whole_numbers"));
  const nb::object numbers = (*read)(given);
  if (numbers.is_none()) {
    throw Error(fmt::format("expected positions, which are whole numbers, got {}",
                            nb::repr(given).c_str()));
  }
  return nb::cast<std::vector<int64_t>>(numbers);
}

std::vector<int64_t> indices_of(const std::vector<bool>& flags) {
  std::vector<int64_t> found;
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) found.push_back(static_cast<int64_t>(i));
  }
  return found;
}

nb::dict own_keywords(const OwnValues& values) {
  nb::dict keywords;
  for (const auto& [name, value] : values) keywords[name.c_str()] = python_of(value);
  return keywords;
}

nb::object model_facts(const PolicyModel& model) {
  nb::object space = nb::module_::import_("types").attr("SimpleNamespace")();
  space.attr("num_layers") = model.num_layers;
  space.attr("num_heads") = model.num_heads;
  space.attr("num_kv_heads") = model.num_kv_heads;
  space.attr("head_dim") = model.head_dim;
  return space;
}

}  // namespace blockscope::python
