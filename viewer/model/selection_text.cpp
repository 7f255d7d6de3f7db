#include "viewer/model/selection_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

/// Index of a model's layer or head among the recorded ones.
std::size_t slot_of(const std::vector<std::int64_t>& recorded, std::int64_t wanted,
                    const char* what) {
  const auto found = std::ranges::find(recorded, wanted);
  if (found == recorded.end()) {
    throw UsageError(fmt::format("--select: {} {} is not in the trace, which has {}", what, wanted,
                                 fmt::join(recorded, ", ")));
  }
  return static_cast<std::size_t>(found - recorded.begin());
}

}  // namespace

Selection selection_from(const SelectionText& wanted, const Overview& overview,
                         const Selection& now) {
  Selection selection = now;
  if (wanted.sequence || wanted.block || wanted.step || wanted.layer || wanted.head ||
      wanted.token) {  // what the text leaves out is the first one
    selection = {};
    selection.trace = now.trace;
  }
  if (wanted.sequence || wanted.block) {
    const auto fits = [&](const BlockSteps& block) {
      return (!wanted.sequence || block.sequence == *wanted.sequence) &&
             (!wanted.block || block.block == *wanted.block);
    };
    const auto found = std::ranges::find_if(overview.blocks, fits);
    if (found == overview.blocks.end()) {
      const std::string sequence =
          wanted.sequence ? fmt::format("sequence {}", *wanted.sequence) : "sequence";
      throw UsageError(fmt::format(
          "--select: the trace has no {}{}", sequence,
          wanted.block ? fmt::format(" with block {}", *wanted.block) : " with a block"));
    }
    selection.block = static_cast<std::size_t>(found - overview.blocks.begin());
  }
  if (wanted.step && selection.block < overview.blocks.size()) {
    const auto& steps = overview.blocks[selection.block].steps;
    const auto found = std::ranges::find(steps, *wanted.step, &StepRef::step);
    if (found == steps.end()) {
      throw UsageError(
          fmt::format("--select: the block has steps 1 to {}, not {}", steps.size(), *wanted.step));
    }
    selection.step = static_cast<std::size_t>(found - steps.begin());
  }
  const TraceMeta& meta = overview.info.meta;
  if (wanted.layer) selection.layer = slot_of(meta.layers, *wanted.layer, "layer");
  if (wanted.head) selection.head = slot_of(meta.heads, *wanted.head, "head");
  if (wanted.token) selection.token = static_cast<std::int32_t>(*wanted.token);
  return selection;
}

std::string selection_link(const ViewModel& model) {
  const Overview* overview = model.overview();
  const StepRef* step = model.step();
  if (overview == nullptr || step == nullptr) return "";
  const TraceMeta& meta = overview->info.meta;
  const Selection& at = model.selection();
  std::string link =
      fmt::format("sequence={}&block={}&step={}", step->sequence, step->block, step->step);
  if (at.layer < meta.layers.size()) link += fmt::format("&layer={}", meta.layers[at.layer]);
  if (at.head < meta.heads.size()) link += fmt::format("&head={}", meta.heads[at.head]);
  if (at.token) link += fmt::format("&token={}", *at.token);
  return link;
}

std::string export_name(const ViewModel& model, const std::string& panel,
                        const std::string& extension, SelectionPart part) {
  const Overview* overview = model.overview();
  if (overview == nullptr) return fmt::format("{}.{}", panel, extension);
  const TraceMeta& meta = overview->info.meta;
  const Selection& at = model.selection();
  std::string name =
      fmt::format("{}-{}", std::filesystem::path(overview->info.path).stem().string(), panel);
  const StepRef* step = model.step();
  if (part >= SelectionPart::step && step != nullptr) {
    name += fmt::format("-sequence{}-block{}-step{}", step->sequence, step->block, step->step);
  }
  if (part == SelectionPart::head && at.layer < meta.layers.size() && at.head < meta.heads.size()) {
    name += fmt::format("-layer{}-head{}", meta.layers[at.layer], meta.heads[at.head]);
  }
  return fmt::format("{}.{}", name, extension);
}

}  // namespace blockscope
