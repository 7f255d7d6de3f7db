// compose() applies both deltas to a list of elements that remembers where each one came from. One
// delta is then read from the list. Deleted elements keep their place, so that insertions next to
// them and the counts of a batch's rows stay right.
#include <algorithm>
#include <list>
#include <numeric>

#include "decode_record/frames/frame_delta.h"

namespace blockscope {
namespace {

struct Element {
  bool original = false;
  bool touched = false;  // a transfer changed it; true for inserted ones
  bool alive = true;
  std::int64_t token = 0;
  float confidence = 0.0F;
  std::int64_t step = kUndecodedStep;
};

/// The explicit `row` of a finished sequence: masks at the front, then deletions from the front.
SequenceDelta padding_delta(std::size_t insertions, std::size_t deletions, std::int64_t mask) {
  SequenceDelta row;
  row.insert_index.assign(insertions, 0);
  row.insert_src_index.resize(insertions);
  std::iota(row.insert_src_index.begin(), row.insert_src_index.end(), std::int64_t{0});
  row.decoded_tokens.assign(insertions, mask);
  row.confidence.assign(insertions, 0.0F);
  row.insert_step.assign(insertions, kUndecodedStep);
  row.delete_index.resize(deletions);
  std::iota(row.delete_index.begin(), row.delete_index.end(), std::int64_t{0});
  return row;
}

SequenceDelta row_for(const FrameDelta& delta, std::size_t sequence, std::int64_t mask) {
  const auto found = std::ranges::find(delta.active, sequence);
  if (found != delta.active.end()) {
    return delta.rows[static_cast<std::size_t>(found - delta.active.begin())];
  }
  if (delta.rows.empty()) return {};
  const SequenceDelta& model = delta.rows.front();
  return padding_delta(model.insert_index.size(), model.delete_index.size(), mask);
}

std::vector<std::list<Element>::iterator> living(std::list<Element>& elements) {
  std::vector<std::list<Element>::iterator> result;
  for (auto it = elements.begin(); it != elements.end(); ++it) {
    if (it->alive) result.push_back(it);
  }
  return result;
}

void play(std::list<Element>& elements, const SequenceDelta& row) {
  const auto before = living(elements);
  const auto set = [&row](Element& element, std::int64_t source, std::int64_t step) {
    const auto at = static_cast<std::size_t>(source);
    element.touched = true;
    element.token = row.decoded_tokens[at];
    element.confidence = row.confidence[at];
    element.step = step;
  };
  for (std::size_t i = 0; i < row.transfer_index.size(); ++i) {
    set(*before[static_cast<std::size_t>(row.transfer_index[i])], row.transfer_src_index[i],
        row.transfer_step[i]);
  }
  for (std::size_t i = 0; i < row.insert_index.size(); ++i) {
    const auto target = static_cast<std::size_t>(row.insert_index[i]);
    Element element;
    set(element, row.insert_src_index[i], row.insert_step[i]);
    // list::insert puts it before the target: equal targets keep their order.
    elements.insert(target < before.size() ? before[target] : elements.end(), element);
  }
  if (row.delete_index.empty()) return;
  const auto after = living(elements);
  for (const std::int64_t i : row.delete_index) after[static_cast<std::size_t>(i)]->alive = false;
}

SequenceDelta read_off(const std::list<Element>& elements) {
  SequenceDelta row;
  const auto add = [&row](const Element& element, std::vector<std::int64_t>& source,
                          std::vector<std::int64_t>& steps) {
    source.push_back(static_cast<std::int64_t>(row.decoded_tokens.size()));
    row.decoded_tokens.push_back(element.token);
    row.confidence.push_back(element.confidence);
    steps.push_back(element.step);
  };
  std::int64_t originals = 0;
  std::int64_t position = 0;  // after the insertions
  for (const Element& element : elements) {
    if (element.original && element.touched) {
      row.transfer_index.push_back(originals);
      add(element, row.transfer_src_index, row.transfer_step);
    } else if (!element.original) {
      row.insert_index.push_back(originals);
      add(element, row.insert_src_index, row.insert_step);
    }
    if (!element.alive) row.delete_index.push_back(position);
    ++position;
    if (element.original) ++originals;
  }
  return row;
}

bool changes_size(const FrameDelta& delta) {
  return std::ranges::any_of(delta.rows, [](const SequenceDelta& row) {
    return !row.insert_index.empty() || !row.delete_index.empty();
  });
}

}  // namespace

FrameDelta compose(const Frame& before, const FrameDelta& first, const FrameDelta& second) {
  const FrameDelta a = resolve_delta(before, first);
  Frame between = before;
  apply_delta(between, a);
  const FrameDelta b = resolve_delta(between, second);
  // Finished sequences are padded by a rule. Once sizes change, the padding must be explicit.
  const bool all = changes_size(a) || changes_size(b);
  FrameDelta result;
  result.num_sequences = before.num_sequences;
  result.active.clear();
  result.rows.clear();
  for (std::size_t sequence = 0; sequence < before.num_sequences; ++sequence) {
    const bool active =
        std::ranges::count(a.active, sequence) != 0 || std::ranges::count(b.active, sequence) != 0;
    if (!all && !active) continue;
    std::list<Element> elements(before.gen_length, Element{.original = true});
    play(elements, row_for(a, sequence, before.mask_token_id));
    play(elements, row_for(b, sequence, before.mask_token_id));
    result.active.push_back(sequence);
    result.rows.push_back(read_off(elements));
  }
  return result;
}

}  // namespace blockscope
