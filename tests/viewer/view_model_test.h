// Waiting for the viewer's background thread in tests without a window.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "viewer/model/view_model.h"

namespace blockscope::testing {

inline const std::string kFrozenTrace =
    std::string(BLOCKSCOPE_SOURCE_DIR) + "/tests/data/trace_schema_1.h5";

inline bool wait_until(ViewModel& model, const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < end) {
    model.update();
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

template <typename T>
Data<T> wait_for(ViewModel& model, const std::function<Data<T>()>& ask) {
  Data<T> data;
  wait_until(model, [&] {
    data = ask();
    return data.state != DataState::loading;
  });
  return data;
}

}  // namespace blockscope::testing
