#include "viewer/serve/remote_screen.h"

#include <fmt/format.h>
#include <imgui.h>
#include <imgui_internal.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "decode_record/base/error.h"

namespace blockscope {
namespace {

/// More frames on their way would only be old when they arrive.
constexpr std::uint32_t kMostUnseen = 2;
constexpr std::size_t kMostInputsAhead = 2000;
constexpr std::size_t kMostBytesAhead = std::size_t{1} << 20U;
constexpr int kMostEventsInside = 64;  // Dear ImGui takes one click a frame out of its queue

/// The cursor's name in CSS.
const char* cursor_name() {
  switch (ImGui::GetMouseCursor()) {
    case ImGuiMouseCursor_None:
      return "none";
    case ImGuiMouseCursor_TextInput:
      return "text";
    case ImGuiMouseCursor_ResizeAll:
      return "move";
    case ImGuiMouseCursor_ResizeNS:
      return "ns-resize";
    case ImGuiMouseCursor_ResizeEW:
      return "ew-resize";
    case ImGuiMouseCursor_ResizeNESW:
      return "nesw-resize";
    case ImGuiMouseCursor_ResizeNWSE:
      return "nwse-resize";
    case ImGuiMouseCursor_Hand:
      return "pointer";
    case ImGuiMouseCursor_Wait:
    case ImGuiMouseCursor_Progress:
      return "progress";
    case ImGuiMouseCursor_NotAllowed:
      return "not-allowed";
    default:
      return "default";
  }
}

ImGuiKey key_of(const std::string& name) {
  for (int key = ImGuiKey_NamedKey_BEGIN; key < ImGuiKey_GamepadStart; ++key) {
    if (name == ImGui::GetKeyName(static_cast<ImGuiKey>(key))) return static_cast<ImGuiKey>(key);
  }
  throw Error("a message of the page: expected the name of a key");
}

/// Nobody moves and types so far ahead: it is a flood. What ends a press, or changes the page, is
/// kept for longer.
bool is_dispensable(const PageInput& input) {
  const auto* button = std::get_if<PointerButton>(&input);
  const auto* press = std::get_if<KeyPress>(&input);
  return (button != nullptr && button->down) || (press != nullptr && press->down) ||
         std::holds_alternative<PointerMove>(input) ||
         std::holds_alternative<PointerWheel>(input) || std::holds_alternative<TypedText>(input) ||
         std::holds_alternative<PastedText>(input);
}

std::size_t text_bytes(const PageInput& input) {
  if (const auto* typed = std::get_if<TypedText>(&input)) return typed->text.size();
  if (const auto* pasted = std::get_if<PastedText>(&input)) return pasted->text.size();
  if (const auto* followed = std::get_if<LinkFollowed>(&input)) return followed->link.size();
  return 0;
}

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

RemoteScreen::RemoteScreen(const ScreenOptions& options, int socket)
    : HeadlessScreen(options), socket_(socket), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_ < 0) throw Error("view --serve: no file descriptor is left. HINT: raise `ulimit -n`");
  ImGuiPlatformIO& platform = ImGui::GetPlatformIO();
  platform.Platform_ClipboardUserData = this;
  platform.Platform_GetClipboardTextFn = [](ImGuiContext*) {
    return static_cast<RemoteScreen*>(ImGui::GetPlatformIO().Platform_ClipboardUserData)
        ->clipboard_.c_str();
  };
  platform.Platform_SetClipboardTextFn = [](ImGuiContext*, const char* text) {
    static_cast<RemoteScreen*>(ImGui::GetPlatformIO().Platform_ClipboardUserData)
        ->set_clipboard(text);
  };
  last_frame_ = std::chrono::steady_clock::now();
}

RemoteScreen::~RemoteScreen() {
  ::close(socket_);
  ::close(wake_);
}

void RemoteScreen::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));
}

bool RemoteScreen::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  bool news = !inputs_.empty();
  while (!should_close()) {
    // Without a page nothing is drawn, and a page that is behind gets no more frames.
    const bool blocked = !attached_ || !sized_ || frame_ - shown_ >= kMostUnseen;
    if (news && !blocked) break;
    const std::chrono::duration<double, std::milli> left = end - Clock::now();
    if (!blocked && seconds > 0.0 && left.count() <= 0.0) break;
    std::array<pollfd, 2> wanted = {{{socket_, POLLIN, 0}, {wake_, POLLIN, 0}}};
    const int patience = blocked ? -1 : static_cast<int>(std::ceil(std::max(0.0, left.count())));
    if (::poll(wanted.data(), wanted.size(), patience) < 0 && errno != EINTR) break;
    if (wanted[1].revents != 0) {
      std::uint64_t count = 0;
      news = ::read(wake_, &count, sizeof(count)) > 0 || news;
    }
    if (wanted[0].revents != 0) news = receive() || news;
    if (seconds <= 0.0 && !blocked) break;
  }
  feed();
  return news;
}

bool RemoteScreen::receive() {
  std::array<char, 65536> buffer{};
  const ssize_t count = ::recv(socket_, buffer.data(), buffer.size(), 0);
  if (count < 0 && errno == EINTR) return false;
  if (count <= 0) {  // the server ended
    vanish();
    return true;
  }
  received_.append(buffer.data(), static_cast<std::size_t>(count));
  std::size_t at = 0;
  while (received_.size() - at >= kLinkHeader) {
    const std::string_view header = std::string_view(received_).substr(at, kLinkHeader);
    const std::size_t bytes = link_payload_bytes(header);
    if (received_.size() - at < kLinkHeader + bytes) break;
    const auto kind = static_cast<LinkKind>(header.back());
    take(kind, std::string_view(received_).substr(at + kLinkHeader, bytes));
    at += kLinkHeader + bytes;
  }
  received_.erase(0, at);
  if (received_.empty()) std::string().swap(received_);  // a large file was in it
  return true;
}

void RemoteScreen::take(LinkKind kind, std::string_view payload) {
  try {
    if (kind == LinkKind::attached) attach();
    if (kind == LinkKind::detached) attached_ = false;
    if (kind == LinkKind::file) apply(read_given_file(payload));
    if (kind != LinkKind::events) return;
    for (PageInput& input : read_events(payload)) {
      if (const auto* press = std::get_if<KeyPress>(&input)) key_of(press->name);  // or an Error
      // What frames wait for does not wait for frames.
      if (std::holds_alternative<FrameShown>(input) || std::holds_alternative<PageSize>(input)) {
        apply(input);
      } else if (inputs_.size() < (is_dispensable(input) ? 1 : 2) * kMostInputsAhead &&
                 ahead_bytes_ < kMostBytesAhead) {
        ahead_bytes_ += text_bytes(input);
        inputs_.push_back(std::move(input));
      }
    }
  } catch (const Error& error) {
    send(LinkKind::refused, error.what());
  }
}

void RemoteScreen::attach() {
  attached_ = true;
  sized_ = moved_ = false;
  inputs_.clear();  // of a page that is gone, with its keys and buttons
  ahead_bytes_ = 0;
  ImGui::GetIO().AddFocusEvent(false);
  shown_ = frame_;
  stream_.restart();
  send(LinkKind::message, fmt::format("r{}", ::getpid()));  // the page may have known another one
  for (const auto& [name, json] : told_) {
    send(LinkKind::message, fmt::format("j{{\"{}\":{}}}", name, json));
  }
}

/// A drag that ends where the pointer went last needs a frame between the move and the release:
/// Dear ImGui ends a drag before it looks at the place. Where a press and a move came together, it
/// takes the press in one frame and the move in the next.
void RemoteScreen::feed() {
  while (!inputs_.empty() &&
         ImGui::GetCurrentContext()->InputEventsQueue.Size < kMostEventsInside) {
    if (moved_ && std::holds_alternative<PointerButton>(inputs_.front())) break;
    moved_ = moved_ || std::holds_alternative<PointerMove>(inputs_.front());
    ahead_bytes_ -= text_bytes(inputs_.front());
    apply(inputs_.front());
    inputs_.pop_front();
  }
}

void RemoteScreen::apply(const PageInput& input) {
  ImGuiIO& io = ImGui::GetIO();
  struct Visitor {
    RemoteScreen& self;
    ImGuiIO& io;
    void operator()(const PageSize& size) const {
      io.DisplaySize = ImVec2(size.width, size.height);
      io.DisplayFramebufferScale = ImVec2(size.scale, size.scale);
      self.sized_ = true;
    }
    void operator()(const PointerMove& move) const { io.AddMousePosEvent(move.x, move.y); }
    void operator()(const PointerButton& press) const {
      io.AddMouseButtonEvent(press.button, press.down);
    }
    void operator()(const PointerWheel& wheel) const { io.AddMouseWheelEvent(wheel.x, wheel.y); }
    void operator()(const KeyPress& press) const { io.AddKeyEvent(key_of(press.name), press.down); }
    void operator()(const Modifiers& modifiers) const {
      io.AddKeyEvent(ImGuiMod_Ctrl, modifiers.control);
      io.AddKeyEvent(ImGuiMod_Shift, modifiers.shift);
      io.AddKeyEvent(ImGuiMod_Alt, modifiers.alt);
    }
    void operator()(const TypedText& typed) const { io.AddInputCharactersUTF8(typed.text.c_str()); }
    void operator()(const PastedText& pasted) const {
      self.clipboard_ = pasted.text;
      for (const bool down : {true, false}) {
        io.AddKeyEvent(ImGuiMod_Ctrl, down);
        io.AddKeyEvent(ImGuiKey_V, down);
      }
    }
    void operator()(const PageFocus& focus) const { io.AddFocusEvent(focus.focused); }
    void operator()(const FrameShown& shown) const {
      // An old page's last word must not open the tap for frames that nobody saw.
      if (shown.frame - self.shown_ <= self.frame_ - self.shown_) self.shown_ = shown.frame;
    }
    void operator()(const LinkFollowed& followed) const {
      self.links_ = {followed.link};
      // The page's address shows what was asked for, until it is answered.
      self.told_.erase("link");
    }
    void operator()(const FileGiven& file) const { self.files_ = {{file.name, file.bytes}}; }
  };
  std::visit(Visitor{*this, io}, input);
}

void RemoteScreen::send(LinkKind kind, std::string_view payload) {
  const std::string header = link_header(kind, payload.size());
  for (std::string_view rest : {std::string_view(header), payload}) {
    while (!rest.empty()) {
      const ssize_t count = ::send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return vanish();  // the server ended
      rest.remove_prefix(static_cast<std::size_t>(count));
    }
  }
}

void RemoteScreen::tell(const std::string& name, const std::string& json) {
  const auto found = told_.find(name);
  if (found != told_.end() && found->second == json) return;
  told_[name] = json;
  if (attached_) send(LinkKind::message, fmt::format("j{{\"{}\":{}}}", name, json));
}

void RemoteScreen::drawn(const ImDrawData& data) {
  moved_ = std::ranges::any_of(
      ImGui::GetCurrentContext()->InputEventsQueue,
      [](const ImGuiInputEvent& event) { return event.Type == ImGuiInputEventType_MousePos; });
  tell("cursor", json_text(cursor_name()));
  if (!attached_) return;
  const std::string changes = stream_.next(data);
  if (changes.empty()) return;
  ++frame_;
  std::string message = "f";
  message.append(reinterpret_cast<const char*>(&frame_), sizeof(frame_));
  send(LinkKind::message, message + changes);
}

float RemoteScreen::frame_seconds() {
  constexpr float kLeast = 1e-4F;
  constexpr float kMost = 1.0F;
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<float> passed = now - std::exchange(last_frame_, now);
  return std::clamp(passed.count(), kLeast, kMost);
}

void RemoteScreen::set_clipboard(const std::string& text) {
  clipboard_ = text;
  if (attached_) {
    send(LinkKind::message, fmt::format("j{{\"clipboard\":{}}}", json_text(text)));
  }
}

void RemoteScreen::download(const std::string& name, const std::string& bytes) {
  if (!attached_) throw Error("The browser is not connected, so it can't take the file.");
  std::string message = "d";
  message.push_back(static_cast<char>(name.size() & 0xFFU));
  message.push_back(static_cast<char>((name.size() >> 8U) & 0xFFU));
  send(LinkKind::message, message + name + bytes);
}

void RemoteScreen::pick_file() {
  if (attached_) send(LinkKind::message, "j{\"pick\":true}");
}

std::vector<PickedFile> RemoteScreen::take_files() { return std::exchange(files_, {}); }

void RemoteScreen::set_link(const std::string& text) { tell("link", json_text(text)); }

std::vector<std::string> RemoteScreen::take_links() { return std::exchange(links_, {}); }

void RemoteScreen::set_unsaved(bool unsaved) { tell("unsaved", unsaved ? "true" : "false"); }

}  // namespace blockscope
