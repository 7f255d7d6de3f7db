#include "viewer/screen/headless_screen.h"

#include <imgui.h>

#include <chrono>
#include <utility>

#include "viewer/screen/rasterizer.h"

namespace blockscope {
namespace {

void name_textures(const ImDrawData& data) {
  static ImTextureID last = 0;
  for (ImTextureData* texture : *data.Textures) {
    if (texture->Status == ImTextureStatus_WantCreate) texture->SetTexID(++last);
  }
}

/// A graphics driver would copy them. Here their pixels simply stay in memory.
void accept_textures(const ImDrawData& data) {
  for (ImTextureData* texture : *data.Textures) {
    if (texture->Status == ImTextureStatus_WantDestroy) {
      if (texture->UnusedFrames == 0) continue;
      texture->SetTexID(ImTextureID_Invalid);
      texture->SetStatus(ImTextureStatus_Destroyed);
    } else if (texture->Status != ImTextureStatus_Destroyed) {
      texture->SetStatus(ImTextureStatus_OK);
    }
  }
}

}  // namespace

HeadlessScreen::HeadlessScreen(const ScreenOptions& options) {
  begin(options.scale > 0.0F ? options.scale : 1.0F, options.ini_file, true);
  ImGuiIO& io = ImGui::GetIO();
  io.BackendFlags |= ImGuiBackendFlags_RendererHasVtxOffset |
                     ImGuiBackendFlags_RendererHasTextures | ImGuiBackendFlags_HasMouseCursors;
  io.DisplaySize = ImVec2(static_cast<float>(options.width), static_cast<float>(options.height));
}

HeadlessScreen::~HeadlessScreen() {
  ImGui::GetIO().BackendFlags &= ~ImGuiBackendFlags_RendererHasTextures;
  for (ImTextureData* texture : ImGui::GetPlatformIO().Textures) {
    texture->SetTexID(ImTextureID_Invalid);
    texture->SetStatus(ImTextureStatus_Destroyed);
  }
}

bool HeadlessScreen::wait(double seconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return woken_; });
  return std::exchange(woken_, false);
}

void HeadlessScreen::wake() {
  {
    const std::scoped_lock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void HeadlessScreen::frame(const std::function<void()>& draw, Image* picture) {
  ImGui::GetIO().DeltaTime = frame_seconds();
  ImGui::NewFrame();
  draw();
  ImGui::Render();
  const ImDrawData& data = *ImGui::GetDrawData();
  name_textures(data);
  drawn(data);
  accept_textures(data);
  if (picture != nullptr) *picture = rasterized(data);
}

}  // namespace blockscope
