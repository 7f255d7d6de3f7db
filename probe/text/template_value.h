// Values of the chat-template renderer: JSON, the undefined value, and namespace() objects, which
// loops may change. JSON is shared by pointer, so messages[0].content copies nothing.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace blockscope {

class TemplateValue {
 public:
  using Namespace = std::map<std::string, TemplateValue>;

  TemplateValue() = default;  // undefined
  explicit TemplateValue(nlohmann::json value)
      : json_(std::make_shared<const nlohmann::json>(std::move(value))) {}
  explicit TemplateValue(std::shared_ptr<const nlohmann::json> value) : json_(std::move(value)) {}
  explicit TemplateValue(std::shared_ptr<Namespace> value) : namespace_(std::move(value)) {}

  bool is_undefined() const { return !json_ && !namespace_; }
  bool is_string() const { return json_ && json_->is_string(); }
  bool is_integer() const { return json_ && json_->is_number_integer(); }
  const nlohmann::json* json() const { return json_.get(); }
  Namespace* space() const { return namespace_.get(); }
  const std::string& string() const { return json_->get_ref<const std::string&>(); }

  /// Python's truth value; undefined is false.
  bool truthy() const;
  /// Key of an object or namespace; undefined if there is none.
  TemplateValue member(const std::string& key) const;
  /// Element of a list, sharing ownership.
  TemplateValue element(std::size_t index) const;

 private:
  std::shared_ptr<const nlohmann::json> json_;
  std::shared_ptr<Namespace> namespace_;
};

/// Python's str.strip family: `characters` absent means white space.
std::string strip_text(std::string_view text, const std::optional<std::string>& characters,
                       bool left, bool right);

/// Python's str.split(separator), and str.split() if `separator` is absent. Stops after `most` + 1
/// parts.
std::vector<std::string> split_text(std::string_view text,
                                    const std::optional<std::string>& separator,
                                    std::size_t most = std::numeric_limits<std::size_t>::max());

/// Python's str.lower and str.upper; nullopt for other than ASCII, where they need Unicode's
/// tables.
std::optional<std::string> change_case(std::string text, bool upper);

/// Python's datetime.now().strftime(format), in English. nullopt for a directive whose result
/// depends on the platform.
std::optional<std::string> format_local_time(const std::string& format);

}  // namespace blockscope
