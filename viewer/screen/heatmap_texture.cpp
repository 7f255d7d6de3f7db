#include "viewer/screen/heatmap_texture.h"

#include <imgui_internal.h>

#include <cstring>
#include <utility>

namespace blockscope {
namespace {

void forget(ImTextureData* texture) {
  ImGui::UnregisterUserTexture(texture);
  ImGui::GetPlatformIO().Textures.find_erase(texture);
}

}  // namespace

HeatmapTexture::~HeatmapTexture() {
  retire();
  for (const auto& texture : retired_) forget(texture.get());
}

void HeatmapTexture::retire() {
  if (texture_ == nullptr) return;
  texture_->WantDestroyNextFrame = true;  // else it would be made again once it is destroyed
  texture_->SetStatus(ImTextureStatus_WantDestroy);
  texture_->UnusedFrames = 1;  // no drawing of this frame refers to it
  retired_.push_back(std::move(texture_));
}

void HeatmapTexture::set(int width, int height, std::span<const std::uint32_t> rgba) {
  std::erase_if(retired_, [](const auto& texture) {
    if (texture->Status != ImTextureStatus_Destroyed) return false;
    forget(texture.get());
    return true;
  });
  const bool fits = texture_ != nullptr && texture_->Width == width && texture_->Height == height;
  if (!fits) {
    retire();
    texture_ = std::make_unique<ImTextureData>();
    texture_->Create(ImTextureFormat_RGBA32, width, height);
    texture_->UseColors = true;
    ImGui::RegisterUserTexture(texture_.get());
  }
  std::memcpy(texture_->GetPixels(), rgba.data(), rgba.size_bytes());
  if (texture_->Status == ImTextureStatus_WantCreate) return;
  const ImTextureRect all = {0, 0, static_cast<unsigned short>(width),
                             static_cast<unsigned short>(height)};
  texture_->UpdateRect = texture_->UsedRect = all;
  texture_->Updates.resize(0);
  texture_->Updates.push_back(all);
  texture_->SetStatus(ImTextureStatus_WantUpdates);
}

ImTextureRef HeatmapTexture::ref() const {
  ImTextureRef ref;
  ref._TexData = texture_.get();
  return ref;
}

}  // namespace blockscope
