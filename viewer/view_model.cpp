#include "viewer/view_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "decode_record/error.h"

namespace blockscope {
namespace {

/// The reader at `index`, or an error for the panel that asked.
TraceReader& reader_at(OpenTraces& traces, std::size_t index) {
  if (index >= traces.size() || !traces[index]) throw TraceError("the trace is closed");
  return *traces[index];
}

Selection first_of(std::size_t trace) {
  Selection selection;
  selection.trace = trace;
  return selection;
}

template <typename Container>
std::size_t clamped(std::size_t index, const Container& container) {
  return container.empty() ? 0 : std::min(index, container.size() - 1);
}

}  // namespace

ViewModel::ViewModel(std::size_t budget_bytes) : data_(budget_bytes) {
  // Twice a second: rows written since, and files that vanished.
  data_.set_idle([mailbox = mailbox_](OpenTraces& traces) {
    bool any = false;
    for (std::size_t i = 0; i < traces.size(); ++i) {
      if (!traces[i]) continue;
      std::string problem;
      std::shared_ptr<const Overview> news;
      try {
        if (!traces[i]->info().partial) continue;
        if (traces[i]->refresh()) news = read_overview(*traces[i]);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      if (!news && problem.empty()) continue;
      any = true;
      const std::scoped_lock lock(mailbox->mutex);
      mailbox->letters.emplace_back([i, news, problem](ViewModel& model) {
        OpenDocument& document = model.documents_[i];
        if (news) {
          document.overview = news;
          document.live = news->info.partial;
          document.version += 1;
        } else if (document.problem != problem) {
          document.problem = problem;
          model.problems_.push_back(problem);
        }
      });
    }
    return any;
  });
}

void ViewModel::open(const std::string& path) {
  const auto same = std::ranges::find_if(documents_, [&](const OpenDocument& document) {
    return document.path == path && document.state != OpenState::failed;
  });
  if (same != documents_.end()) {
    selection_.trace = static_cast<std::size_t>(same - documents_.begin());
    clamp_selection();
    return;
  }
  const std::size_t index = documents_.size();
  documents_.push_back({});
  documents_.back().path = path;
  data_.post([index, path, mailbox = mailbox_](OpenTraces& traces) {
    traces.resize(std::max(traces.size(), index + 1));
    std::shared_ptr<const Overview> overview;
    std::string problem;
    try {
      traces[index] = std::make_unique<TraceReader>(path);
      overview = read_overview(*traces[index]);
    } catch (const std::exception& error) {
      traces[index].reset();
      problem = error.what();
    }
    const std::scoped_lock lock(mailbox->mutex);
    mailbox->letters.emplace_back([index, overview, problem](ViewModel& model) {
      OpenDocument& document = model.documents_[index];
      document.overview = overview;
      document.problem = problem;
      document.state = overview ? OpenState::open : OpenState::failed;
      document.live = overview && overview->info.partial;
      if (!overview) {
        model.problems_.push_back(problem);
        return;
      }
      if (model.overview() == nullptr) model.selection_ = first_of(index);
      model.clamp_selection();
    });
  });
}

void ViewModel::close(std::size_t trace) {
  if (trace >= documents_.size()) return;
  // Slots keep their numbers, so that keys and jobs under way stay true.
  documents_[trace].overview.reset();
  documents_[trace].state = OpenState::failed;
  documents_[trace].problem = "closed";
  data_.forget(fmt::format("{}/", trace));
  data_.post([trace](OpenTraces& traces) {
    if (trace < traces.size()) traces[trace].reset();
  });
  clamp_selection();
}

void ViewModel::update() {
  std::vector<std::function<void(ViewModel&)>> letters;
  {
    const std::scoped_lock lock(mailbox_->mutex);
    letters.swap(mailbox_->letters);
  }
  for (const auto& letter : letters) letter(*this);
  if (!letters.empty()) clamp_selection();
}

const Overview* ViewModel::overview() const {
  return selection_.trace < documents_.size() ? documents_[selection_.trace].overview.get()
                                              : nullptr;
}

const BlockSteps* ViewModel::block() const {
  const Overview* open = overview();
  return open != nullptr && selection_.block < open->blocks.size() ? &open->blocks[selection_.block]
                                                                   : nullptr;
}

const StepRef* ViewModel::step() const {
  const BlockSteps* here = block();
  return here != nullptr && selection_.step < here->steps.size() ? &here->steps[selection_.step]
                                                                 : nullptr;
}

const StepRef* ViewModel::next_step() const {
  const BlockSteps* here = block();
  return here != nullptr && selection_.step + 1 < here->steps.size()
             ? &here->steps[selection_.step + 1]
             : nullptr;
}

void ViewModel::select(Selection wanted) {
  selection_ = wanted;
  clamp_selection();
}

void ViewModel::move_step(int by) {
  const Overview* open = overview();
  if (open == nullptr || block() == nullptr) return;
  const std::vector<BlockSteps>& blocks = open->blocks;
  // Blocks of a batch lie interleaved: the next one of the same sequence is meant.
  const auto neighbour = [&](int direction) {
    for (auto b = static_cast<std::ptrdiff_t>(selection_.block) + direction;
         b >= 0 && b < std::ssize(blocks); b += direction) {
      if (blocks[static_cast<std::size_t>(b)].sequence == block()->sequence) {
        return std::optional(static_cast<std::size_t>(b));
      }
    }
    return std::optional<std::size_t>();
  };
  for (; by > 0; --by) {
    if (next_step() != nullptr) {
      selection_.step += 1;
    } else if (const auto next = neighbour(1)) {
      selection_.block = *next;
      selection_.step = 0;
    }
  }
  for (; by < 0; ++by) {
    if (selection_.step > 0) {
      selection_.step -= 1;
    } else if (const auto before = neighbour(-1)) {
      selection_.block = *before;
      selection_.step = clamped(~std::size_t{0}, block()->steps);
    }
  }
}

void ViewModel::select_row(std::int64_t row) {
  const Overview* open = overview();
  if (open == nullptr) return;
  for (std::size_t b = 0; b < open->blocks.size(); ++b) {
    const auto& steps = open->blocks[b].steps;
    const auto found = std::ranges::find(steps, row, &StepRef::row);
    if (found == steps.end()) continue;
    selection_.block = b;
    selection_.step = static_cast<std::size_t>(found - steps.begin());
    return;
  }
}

void ViewModel::pop_problem() {
  if (!problems_.empty()) problems_.erase(problems_.begin());
}

void ViewModel::clamp_selection() {
  if (overview() == nullptr) {
    const auto open = std::ranges::find(documents_, OpenState::open, &OpenDocument::state);
    if (open == documents_.end()) return;
    selection_ = first_of(static_cast<std::size_t>(open - documents_.begin()));
  }
  const Overview& open = *overview();
  selection_.block = clamped(selection_.block, open.blocks);
  selection_.step = block() == nullptr ? 0 : clamped(selection_.step, block()->steps);
  selection_.layer = clamped(selection_.layer, open.info.meta.layers);
  selection_.head = clamped(selection_.head, open.info.meta.heads);
  if (selection_.token &&
      (*selection_.token < 0 || *selection_.token >= open.info.meta.block_length)) {
    selection_.token.reset();
  }
}

std::string ViewModel::key(const char* what) const {
  return fmt::format("{}/{}/{}", selection_.trace, documents_[selection_.trace].version, what);
}

Data<Trajectory> ViewModel::trajectory() {
  if (block() == nullptr) return {};
  const std::size_t trace = selection_.trace;
  const std::int64_t sequence = block()->sequence;
  return data_.request<Trajectory>("trajectory", fmt::format("{}/{}", key("trajectory"), sequence),
                                   [trace, sequence](OpenTraces& traces, JobControl& control) {
                                     return read_trajectory(reader_at(traces, trace), sequence,
                                                            control);
                                   });
}

Data<MetricPayload> ViewModel::metric(const std::string& slot, const std::string& name,
                                      Scope scope) {
  if (block() == nullptr) return {};
  RowSelection rows;
  if (scope != Scope::everything) rows.sequences = {{block()->sequence}};
  if (scope == Scope::block) rows.blocks = {{block()->block}};
  const std::string where = scope == Scope::everything ? "all"
                            : scope == Scope::sequence
                                ? fmt::format("{}", block()->sequence)
                                : fmt::format("{}.{}", block()->sequence, block()->block);
  const std::size_t trace = selection_.trace;
  return data_.request<MetricPayload>(slot, fmt::format("{}/{}/{}", key("metric"), name, where),
                                      [trace, name, rows](OpenTraces& traces, JobControl& control) {
                                        return compute_metric(reader_at(traces, trace), name, rows,
                                                              control);
                                      });
}

Data<MatrixPayload> ViewModel::token_matrix(const std::string& slot, Field field, bool all_heads) {
  const StepRef* from = step();
  const StepRef* to = next_step();
  if (from == nullptr || to == nullptr) return {};
  const std::optional<std::size_t> head = all_heads ? std::nullopt : std::optional(selection_.head);
  const std::string what =
      fmt::format("{}/{}/{}/{}/{}/{}", key("tokens"), static_cast<int>(field), from->row, to->row,
                  selection_.layer, head ? std::to_string(*head) : "all");
  return data_.request<MatrixPayload>(
      slot, what,
      [trace = selection_.trace, field, a = from->row, b = to->row, layer = selection_.layer, head](
          OpenTraces& traces, JobControl&) {
        return with_range(token_similarity(reader_at(traces, trace), field, a, b, layer, head));
      });
}

Data<MatrixPayload> ViewModel::step_matrix(const std::string& slot, Field field, bool all_heads) {
  if (block() == nullptr) return {};
  const std::optional<std::size_t> head = all_heads ? std::nullopt : std::optional(selection_.head);
  const std::string what =
      fmt::format("{}/{}/{}/{}/{}", key("steps"), static_cast<int>(field), selection_.block,
                  selection_.layer, head ? std::to_string(*head) : "all");
  return data_.request<MatrixPayload>(
      slot, what,
      [trace = selection_.trace, field, block = *block(), layer = selection_.layer, head](
          OpenTraces& traces, JobControl&) {
        return with_range(step_similarity(reader_at(traces, trace), field, block, layer, head));
      });
}

Data<SetsPayload> ViewModel::sets() {
  if (block() == nullptr) return {};
  const TraceMeta& meta = overview()->info.meta;
  // The KV head that the selected query head reads, as a recorded slot.
  const std::int64_t group = std::max<std::int64_t>(1, meta.num_heads / meta.num_kv_heads);
  const auto found = std::ranges::find(meta.kv_heads, meta.heads[selection_.head] / group);
  if (found == meta.kv_heads.end())
    return {DataState::failed, nullptr, 0.0, "KV head not recorded"};
  const auto kv_head = static_cast<std::size_t>(found - meta.kv_heads.begin());
  return data_.request<SetsPayload>(
      "sets", fmt::format("{}/{}/{}/{}", key("sets"), selection_.block, selection_.layer, kv_head),
      [trace = selection_.trace, block = *block(), layer = selection_.layer, kv_head](
          OpenTraces& traces, JobControl&) {
        return read_sets(reader_at(traces, trace), block, layer, kv_head);
      });
}

}  // namespace blockscope
