// A screen without a display and without a graphics driver: pictures are drawn in memory.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "viewer/screen/screen.h"

struct ImDrawData;

namespace blockscope {

class HeadlessScreen : public Screen {
 public:
  explicit HeadlessScreen(const ScreenOptions& options);
  ~HeadlessScreen() override;

  bool wait(double seconds) override;
  void frame(const std::function<void()>& draw, Image* picture) override;
  void wake() override;

 protected:
  /// Called with what was drawn, while textures still tell what changed in them.
  virtual void drawn(const ImDrawData& /*data*/) {}
  /// Seconds since the last frame.
  virtual float frame_seconds() { return 1.0F / 60.0F; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

}  // namespace blockscope
