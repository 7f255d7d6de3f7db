// The screen of one person's viewer that is shown by a page in a browser. It runs in a process of
// its own, and speaks with the server over a socket.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "viewer/screen/headless_screen.h"
#include "viewer/serve/draw_stream.h"
#include "viewer/serve/page_input.h"
#include "viewer/serve/session_link.h"

namespace blockscope {

class RemoteScreen final : public HeadlessScreen, public Browser {
 public:
  /// Takes over the socket. Throws Error if the system has no descriptors left.
  RemoteScreen(const ScreenOptions& options, int socket);
  ~RemoteScreen() override;

  bool wait(double seconds) override;
  void wake() override;
  void set_clipboard(const std::string& text) override;
  Browser* browser() override { return this; }

  void download(const std::string& name, const std::string& bytes) override;
  void pick_file() override;
  std::vector<PickedFile> take_files() override;
  void set_link(const std::string& text) override;
  std::vector<std::string> take_links() override;
  void set_unsaved(bool unsaved) override;

 protected:
  void drawn(const ImDrawData& data) override;
  float frame_seconds() override;

 private:
  bool receive();  ///< reads what is there; true if anything came
  void take(LinkKind kind, std::string_view payload);
  void feed();  ///< applies what may come into the next frame
  void apply(const PageInput& input);
  void send(LinkKind kind, std::string_view payload);
  void tell(const std::string& name, const std::string& json);
  void attach();

  int socket_;
  int wake_;
  bool attached_ = false;
  bool sized_ = false;  ///< the page has told its size
  std::string received_;
  std::deque<PageInput> inputs_;  ///< that Dear ImGui has not got yet
  std::size_t ahead_bytes_ = 0;   ///< of texts among them
  bool moved_ = false;            ///< the pointer, which no frame has shown yet
  DrawStream stream_;
  std::uint32_t frame_ = 0;                  ///< number of the last one sent
  std::uint32_t shown_ = 0;                  ///< number of the last one that the page drew
  std::map<std::string, std::string> told_;  ///< what the page knows: cursor, link, ...
  std::string clipboard_;
  std::vector<PickedFile> files_;
  std::vector<std::string> links_;
  std::chrono::steady_clock::time_point last_frame_;
};

}  // namespace blockscope
