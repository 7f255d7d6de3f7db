#include "analysis/pass/step_values.h"

#include <algorithm>
#include <cassert>

namespace blockscope {

ArrayView OwnedView::get() const {
  if (!late) return view;
  assert(late->bytes.data);
  return {late->bytes.data.get(), late->own.bytes() / late->place.element_bytes, late->type};
}

FieldPlan::FieldPlan(const std::vector<Needs>& needs) {
  slot_of.fill(-1);
  for (const Needs& need : needs) {
    for (const Field field : need.fields) {
      std::int8_t& slot = slot_of.at(static_cast<std::size_t>(field));
      if (slot < 0) {
        slot = static_cast<std::int8_t>(fields.size());
        fields.push_back(field);
        previous.push_back(false);
        first.push_back(false);
        source.push_back(false);
      }
      const auto i = static_cast<std::size_t>(slot);
      previous[i] = previous[i] || need.previous;
      first[i] = first[i] || need.first;
      source[i] = source[i] || !need.rules.empty();
    }
    rules.insert(rules.end(), need.rules.begin(), need.rules.end());
  }
  std::ranges::sort(rules);
  rules.erase(std::unique(rules.begin(), rules.end()), rules.end());
}

}  // namespace blockscope
