#include "analysis/metrics/draft_selection.h"

#include <algorithm>
#include <utility>

namespace blockscope {
namespace {

ResultArray share_of(std::string name, std::string description, ResultAxis axis) {
  return {std::move(name), "share", std::move(description), {std::move(axis)}, {}, {}};
}

}  // namespace

void DraftSelection::add(std::size_t position, std::int32_t chosen, std::int32_t target,
                         bool accepted) {
  target_there_.add(target >= 0);
  chose_another_.add(chosen > 0);
  (chosen > 0 ? changed_ : kept_).add(accepted);
  if (chosen > 0) best_was_right_.add(target == 0);
  const auto at = static_cast<std::size_t>(chosen);
  target_there_by_position_.resize(std::max(target_there_by_position_.size(), position));
  target_there_by_position_[position - 1].add(target >= 0);
  by_chosen_.resize(std::max(by_chosen_.size(), at + 1));
  by_chosen_[at].add(accepted);
}

std::vector<ResultArray> DraftSelection::arrays(std::size_t positions) const {
  ResultArray selector = share_of(
      "selector",
      "what the draft's selector did, as a share of reached positions whose choice is known",
      {"selection",
       {},
       {"target's token among the candidates", "chose another than the most probable",
        "accepted, most probable chosen", "accepted, another chosen",
        "most probable was right, another chosen"}});
  for (const AcceptedShare* share :
       {&target_there_, &chose_another_, &kept_, &changed_, &best_was_right_}) {
    append(selector, *share);
  }
  ResultArray among = share_of("among_candidates",
                               "reached positions whose target's token was among the candidates",
                               {"position", {}, {}});
  for (std::size_t i = 0; i < positions; ++i) {
    among.axes[0].index.push_back(static_cast<double>(i + 1));
    append(among,
           i < target_there_by_position_.size() ? target_there_by_position_[i] : AcceptedShare{});
  }
  ResultArray chosen =
      share_of("by_chosen", "acceptance by the candidate that was chosen", {"candidate", {}, {}});
  for (std::size_t i = 0; i < by_chosen_.size(); ++i) {
    chosen.axes[0].index.push_back(static_cast<double>(i));
    append(chosen, by_chosen_[i]);
  }
  return {selector, among, chosen};
}

}  // namespace blockscope
