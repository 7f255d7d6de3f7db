// The files of the view model: opened, checked twice a second, and closed, all in the background.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "decode_record/base/error.h"
#include "viewer/model/view_model.h"

namespace blockscope {
namespace {

/// The panels report damage where they find it, so damage here only means a start elsewhere.
PlaceToSee start_of(const TraceReader& trace, const Overview& overview) {
  try {
    return most_to_see(trace, overview.blocks);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

FileFault ViewModel::look_at(const TraceReader& trace, FileWatch& watch) {
  const TraceInfo& info = trace.info();
  if (!watch.begun()) {
    watch.begin(info.path);
    return FileFault::none;
  }
  const FileFault fault = watch.look(info.partial);
  const std::string finished = std::filesystem::path(info.path).replace_extension().string();
  // The run ended and its file got its final name. The next refresh() follows it.
  if (fault == FileFault::removed && info.partial && mark_file(finished)) return FileFault::none;
  return fault;
}

CommandFiles ViewModel::files() const {
  CommandFiles files;
  for (const OpenDocument& document : documents_) files.reads_trace(document.path);
  return files;
}

ViewModel::ViewModel(std::size_t budget_bytes) : data_(budget_bytes) {
  // Twice a second: look for new rows, and for files that vanished or changed.
  data_.set_idle([mailbox = mailbox_, watched = watched_](OpenTraces& traces) {
    bool any = false;
    watched->resize(traces.size());
    for (std::size_t i = 0; i < traces.size(); ++i) {
      if (!traces[i]) continue;
      std::string problem;
      std::shared_ptr<const Overview> news;
      const std::string path = traces[i]->info().path;
      try {
        if (traces[i]->info().partial && traces[i]->refresh()) news = read_overview(*traces[i]);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      WatchedFile& file = (*watched)[i];
      if (traces[i]->info().path != path) file = {};
      const FileFault fault = look_at(*traces[i], file.watch);
      if (!news && problem == file.told_problem && fault == file.told) continue;
      file.told = fault;
      file.told_problem = problem;
      any = true;
      const std::scoped_lock lock(mailbox->mutex);
      mailbox->letters.emplace_back([i, news, problem, fault](ViewModel& model) {
        model.take_news(i, news, problem, fault);
      });
    }
    return any;
  });
}

void ViewModel::take_news(std::size_t trace, const std::shared_ptr<const Overview>& news,
                          const std::string& problem, FileFault fault) {
  OpenDocument& document = documents_[trace];
  if (document.state != OpenState::open) return;
  if (news) {
    document.overview = news;
    document.live = news->info.partial;
    document.version += 1;
    if (follow_ && trace == selection_.trace) select_newest();
  } else if (!problem.empty() && fault == FileFault::none && document.problem != problem) {
    document.problem = problem;
    problems_.push_back(problem);
  }
  if (fault == document.fault) return;
  document.fault = fault;
  document.problem = describe(fault, document.overview->info.path);
  if (fault != FileFault::none) problems_.push_back(document.problem);
}

void ViewModel::set_follow(bool follow) {
  follow_ = follow;
  if (follow_) select_newest();
}

void ViewModel::select_newest() {
  const Overview* open = overview();
  if (open == nullptr) return;
  std::int64_t newest = -1;
  for (const BlockSteps& block : open->blocks) {
    for (const StepRef& step : block.steps) newest = std::max(newest, step.row);
  }
  if (newest >= 0) select_row(newest);
}

void ViewModel::reopen(std::size_t trace) {
  if (trace >= documents_.size() || documents_[trace].state != OpenState::open) return;
  data_.post([trace, path = documents_[trace].path, mailbox = mailbox_,
              watched = watched_](OpenTraces& traces) {
    std::shared_ptr<const Overview> overview;
    std::string problem;
    try {
      // Close the old file first: HDF5 would mistake a file with the same inode for its open one.
      traces.at(trace).reset();
      traces[trace] = std::make_unique<TraceReader>(path);
      overview = read_overview(*traces[trace]);
      watched->resize(traces.size());
      (*watched)[trace] = {};
      (*watched)[trace].watch.begin(traces[trace]->info().path);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const std::scoped_lock lock(mailbox->mutex);
    mailbox->letters.emplace_back([trace, overview, problem](ViewModel& model) {
      OpenDocument& document = model.documents_[trace];
      if (document.state != OpenState::open) return;
      if (!overview) {
        document.problem = problem;  // keep what is loaded
        model.problems_.push_back(problem);
        return;
      }
      document.overview = overview;
      document.live = overview->info.partial;
      document.fault = FileFault::none;
      document.problem.clear();
      document.version += 1;
    });
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
  data_.post([index, path, mailbox = mailbox_, watched = watched_](OpenTraces& traces) {
    traces.resize(std::max(traces.size(), index + 1));
    std::shared_ptr<const Overview> overview;
    PlaceToSee start;
    std::string problem;
    try {
      traces[index] = std::make_unique<TraceReader>(path);
      overview = read_overview(*traces[index]);
      start = start_of(*traces[index], *overview);
      watched->resize(traces.size());
      (*watched)[index] = {};
      (*watched)[index].watch.begin(traces[index]->info().path);
    } catch (const std::exception& error) {
      traces[index].reset();
      problem = error.what();
    }
    const std::scoped_lock lock(mailbox->mutex);
    mailbox->letters.emplace_back([index, overview, start, problem](ViewModel& model) {
      OpenDocument& document = model.documents_[index];
      const bool first = model.overview() == nullptr;  // nothing is selected yet
      document.overview = overview;
      document.start = start;
      document.problem = problem;
      document.state = overview ? OpenState::open : OpenState::failed;
      document.live = overview && overview->info.partial;
      if (!overview) {
        model.problems_.push_back(problem);
        return;
      }
      if (first) model.select_trace(index);
      model.clamp_selection();
    });
  });
}

void ViewModel::close(std::size_t trace) {
  if (trace >= documents_.size()) return;
  // Slots keep their numbers, so keys and running jobs stay valid.
  documents_[trace].overview.reset();
  documents_[trace].state = OpenState::failed;
  documents_[trace].problem = "closed";
  data_.forget(fmt::format("{}/", trace));
  data_.post([trace](OpenTraces& traces) {
    if (trace < traces.size()) traces[trace].reset();
  });
  clamp_selection();
}

}  // namespace blockscope
