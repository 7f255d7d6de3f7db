// The GLFW window, visible or hidden, with its OpenGL 3.3 context.
#pragma once

#include <functional>
#include <string>

#include "viewer/screen/screen.h"

struct GLFWwindow;

namespace blockscope {

class Window final : public Screen {
 public:
  /// Throws Error without a display or OpenGL 3.3; the message says what to do over SSH. A hidden
  /// window is for tests.
  explicit Window(const ScreenOptions& options, bool visible = true);
  ~Window() override;

  bool wait(double seconds) override;
  void frame(const std::function<void()>& draw, Image* picture) override;
  void wake() override;
  void set_clipboard(const std::string& text) override;

 private:
  Image read_pixels() const;

  GLFWwindow* window_ = nullptr;
  bool gl_ready_ = false;
};

}  // namespace blockscope
