// Data of the Selection panel: the prefix keys that a step read, and those of exact attention, for
// one step, layer and KV head. Read on the background thread; no ImGui here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/math/set_comparison.h"
#include "analysis/pass/block_index.h"
#include "viewer/model/csv_table.h"
#include "viewer/model/view_model.h"

namespace blockscope {

/// The text before a block, whose keys the block's steps can read.
struct PrefixText : Payload {
  std::vector<std::string> tokens;  ///< [N], readable; "#id" where the trace has no vocabulary
  std::size_t prompt_length = 0;    ///< tokens after it were decoded and committed
  bool has_pieces = false;          ///< false: there is no text, only token ids
  std::vector<std::int32_t> runs;   ///< [N], end_of_text_runs() of the prompt, and of the rest
  std::size_t bytes() const override;
};
std::shared_ptr<const PrefixText> read_prefix_text(const TraceReader& trace,
                                                   const BlockSteps& block);
/// Prefix of the selected block.
Data<PrefixText> request_prefix_text(ViewModel& model);

enum class KeysRead : std::uint8_t {
  unknown,     ///< the trace has no /attention/selected, or the row has no values
  everything,  ///< the whole prefix
  nothing,     ///< no key of it
  some         ///< the set `selected`
};

struct StepKeys : Payload {
  struct Head {
    std::int64_t head = 0;          ///< the model's
    std::optional<double> covered;  ///< share of the prefix's probability on the keys read
    std::optional<double> error;    ///< /shadow/output_error
  };
  KeysRead read = KeysRead::unknown;
  std::int64_t kv_head = 0;            ///< the model's
  std::int32_t context_length = 0;     ///< N
  std::int32_t external_keys = 0;      ///< those that the layer sees
  std::size_t selected_size = 0;       ///< the trace's set size
  std::vector<std::int32_t> selected;  ///< keys read, without padding
  std::vector<std::int32_t> exact;     ///< /sets/topk without padding; empty: none
  std::vector<float> probability;      ///< of each key of `exact`: mean over the block's queries
  std::vector<std::int32_t> first;     ///< the exact set of the block's step 1; empty: none
  std::vector<Head> heads;             ///< the recorded query heads of the KV head
  std::size_t bytes() const override;
};
/// Keys of `step` of `block`. `layer` and `kv_head` are recorded slots. Throws CorruptTrace for a
/// key outside the prefix or twice in a set.
std::shared_ptr<const StepKeys> read_step_keys(const TraceReader& trace, const BlockSteps& block,
                                               const StepRef& step, std::size_t layer,
                                               std::size_t kv_head);
/// Keys of the selected step and layer, for the selected head's KV head.
Data<StepKeys> request_step_keys(ViewModel& model);

/// The set that is compared with the step's exact set.
enum class KeysAgainst : std::uint8_t {
  read,  ///< the keys that the step read
  first  ///< the exact set of the block's first step, which MAGE reads at every later step
};

/// The comparison a panel shows.
struct KeyView {
  KeysAgainst against = KeysAgainst::read;
  bool compares = false;  ///< the trace has both sets; else the keys of its one set are marked
  SetComparison sets;
  double exact_share = 0.0;  ///< probability on the k' keys of the exact set
};
/// KeysAgainst::read if the trace holds the keys that the step read; first if it holds only exact
/// sets.
KeysAgainst possible(const StepKeys& keys, KeysAgainst wanted);
/// `k`: number of keys of each set that KeysAgainst::first compares; 0: all.
KeyView compare_keys(const StepKeys& keys, KeysAgainst against, std::size_t k);

/// The name of a mark: "hit", "missed", "extra"; compared with step 1's set "kept", "new", "gone";
/// with only one set "read" or "exact".
const char* name_of(KeyMark mark, const KeyView& view);

/// position, token, mark, rank in either set (from 1), probability.
CsvTable step_keys_table(const StepKeys& keys, const KeyView& view, const PrefixText& text);

}  // namespace blockscope
