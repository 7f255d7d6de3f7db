#include "python/runtime/python_cache.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "decode_record/base/error.h"
#include "probe/caches/cache_table.h"
#include "python/runtime/own_choice.h"
#include "python/runtime/plugin_error.h"

namespace nb = nanobind;

namespace blockscope::python {
namespace {

/// `state` in a cache's calls: it may keep it, so it has its own copy of the tokens.
struct CacheState {
  explicit CacheState(const CanvasState& of) : canvas(of), tokens(*of.tokens) {
    canvas.tokens = nullptr;
  }
  CanvasState canvas;
  std::vector<int64_t> tokens;
};

class PythonCache final : public CanvasCache {
 public:
  PythonCache(std::string name, nb::object cache)
      : name_(std::move(name)),
        rows_of_(cache.attr("rows")),
        end_step_(nb::getattr(cache, "end_step", nb::none())),
        wants_confidence_(!end_step_.is_none()) {}
  ~PythonCache() override {
    const nb::gil_scoped_acquire gil;
    rows_of_.reset();
    end_step_.reset();
  }

  std::vector<int64_t> rows(const CanvasState& state) override {
    rows_ = call("rows", state, [&] {
      std::vector<int64_t> rows = whole_numbers_of(rows_of_(nb::cast(CacheState(state))));
      std::ranges::sort(rows);
      check(rows, state);
      return rows;
    });
    return rows_;
  }
  bool wants_answer_confidence() const override { return wants_confidence_; }
  void end_step(const CanvasState& state, const CanvasFeedback& feedback) override {
    if (!wants_confidence_) return;
    call("end_step", state,
         [&] { end_step_(nb::cast(CacheState(state)), feedback.selected, feedback.confidence); });
  }

 private:
  template <typename Work>
  std::invoke_result_t<Work> call(const char* function, const CanvasState& state, Work&& work) {
    const auto where = [&] {
      return fmt::format("cache {}: {}(), step {} of the sequence", name_, function,
                         state.run_step);
    };
    const nb::gil_scoped_acquire gil;
    return call_plugin(where, std::forward<Work>(work));
  }

  static void check(const std::vector<int64_t>& rows, const CanvasState& state) {
    if (rows.empty() || rows.front() < 0 || rows.back() >= state.length) {
      throw Error(fmt::format("expected positions from 0 to {}, got {}", state.length - 1,
                              rows.empty()       ? std::string("none")
                              : rows.front() < 0 ? std::to_string(rows.front())
                                                 : std::to_string(rows.back())));
    }
    if (const auto twice = std::ranges::adjacent_find(rows); twice != rows.end()) {
      throw Error(fmt::format("expected every position once, got {} twice", *twice));
    }
    if (state.run_step == 1 && std::ssize(rows) != state.length) {
      throw Error(fmt::format(
          "expected all {} positions at a sequence's first step, because nothing is kept yet, got "
          "{}",
          state.length, rows.size()));
    }
    for (int64_t p = state.block_start; p < state.block_end(); ++p) {
      const bool masked = state.masked[static_cast<size_t>(p)];
      if (masked && std::ranges::binary_search(rows, p - state.logit_shift)) return;
    }
    throw Error(
        "expected a row that predicts a mask of the block, got none: the block would never "
        "end");
  }

  std::string name_;
  nb::object rows_of_, end_step_;
  bool wants_confidence_;
};

}  // namespace

void add_python_cache(const nb::dict& facts, nb::object make) {
  CacheEntry entry;
  static_cast<ChoiceFacts&>(entry) = choice_facts("cache", facts);
  const std::vector<OwnOption> options = own_options(facts);
  for (const OwnOption& own : options) {
    entry.options.push_back(own_option(own, &CacheOptions::own, entry.name));
  }
  entry.check = [options](const CacheOptions& given) { check_given(options, given.own); };
  entry.single_rows = true;
  entry.ranges = [](const CacheOptions&, int64_t, int64_t total) { return total; };
  entry.later_keys = [](int64_t, int64_t total, bool) { return total; };
  entry.make = [make = KeptObject(std::move(make)), name = entry.name,
                file = nb::cast<std::string>(facts["file"])](
                   const CacheOptions& chosen) -> std::unique_ptr<CanvasCache> {
    const nb::gil_scoped_acquire gil;
    const std::string where = fmt::format("{} ({})", name, file);
    return call_plugin([&] { return "cache " + where; },
                       [&]() -> std::unique_ptr<CanvasCache> {
                         return std::make_unique<PythonCache>(
                             where, make.get()(**own_keywords(chosen.own)));
                       });
  };
  add_cache(std::move(entry));
}

void bind_python_cache(nb::module_& module) {
  const auto fact = [](auto member) {
    return [member](const CacheState& state) { return state.canvas.*member; };
  };
  nb::class_<CacheState>(module, "CacheState")
      .def_prop_ro("prompt_length", fact(&CanvasState::prompt_length))
      .def_prop_ro("length", fact(&CanvasState::length))
      .def_prop_ro("block_start", fact(&CanvasState::block_start))
      .def_prop_ro("block_length", fact(&CanvasState::block_length))
      .def_prop_ro("block_end", [](const CacheState& state) { return state.canvas.block_end(); })
      .def_prop_ro("step", fact(&CanvasState::step))
      .def_prop_ro("run_step", fact(&CanvasState::run_step))
      .def_prop_ro("logit_shift", fact(&CanvasState::logit_shift))
      .def_ro("tokens", &CacheState::tokens)
      .def_prop_ro("masked",
                   [](const CacheState& state) { return indices_of(state.canvas.masked); });
}

}  // namespace blockscope::python
