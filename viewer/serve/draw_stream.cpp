#include "viewer/serve/draw_stream.h"

#include <fmt/format.h>
#include <imgui.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "decode_record/base/error.h"
#include "viewer/screen/heatmap_texture.h"

namespace blockscope {
namespace {

constexpr float kPositionParts = 64.0F;      // of a pixel: finer than what can be seen
constexpr float kTextureParts = 1048576.0F;  // of a texture's width: 1/1024 texel of a large atlas
constexpr std::uint16_t kNone = 0xFFFF;      // no drawing before
constexpr std::size_t kFields = 5;

enum class TextureChange : std::uint8_t { create = 1, update = 2, destroy = 3 };
enum class DrawingChange : std::uint8_t { none = 0, part = 1 };
/// What the changed values are told against.
enum class Against : std::uint8_t { neighbour = 0, before = 1 };

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));  // little-endian machines only
}

std::uint32_t fixed(float value, float parts) {
  constexpr float kMost = 2e9F;
  return static_cast<std::uint32_t>(
      static_cast<std::int32_t>(std::lround(std::clamp(value * parts, -kMost, kMost))));
}

/// Small differences of either sign as small numbers.
std::uint32_t folded(std::uint32_t difference) {
  const auto value = static_cast<std::int32_t>(difference);
  return (static_cast<std::uint32_t>(value) << 1U) ^ static_cast<std::uint32_t>(value >> 31U);
}

/// The bytes of equal weight next to one another: those of high weight are nearly all zero.
template <typename T>
void put_planes(std::string& out, const std::vector<T>& values) {
  for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
    for (const T value : values) out.push_back(static_cast<char>((value >> (8 * byte)) & 0xFFU));
  }
}

struct Changed {
  std::size_t prefix = 0, suffix = 0;
};

/// How many elements at the beginning and at the end are as before.
template <typename Same>
Changed unchanged_ends(std::size_t before, std::size_t now, const Same& same) {
  const std::size_t most = std::min(before, now);
  Changed ends;
  while (ends.prefix < most && same(ends.prefix, ends.prefix)) ++ends.prefix;
  while (ends.prefix + ends.suffix < most &&
         same(before - 1 - ends.suffix, now - 1 - ends.suffix)) {
    ++ends.suffix;
  }
  return ends;
}

void put_ends(std::string& out, std::size_t size, const Changed& ends) {
  for (const std::size_t value : {size, ends.prefix, ends.suffix}) {
    put(out, static_cast<std::uint32_t>(value));
  }
}

void put_indices(std::string& out, const std::vector<std::uint16_t>& before,
                 const std::vector<std::uint16_t>& now) {
  const Changed ends = unchanged_ends(
      before.size(), now.size(), [&](std::size_t b, std::size_t n) { return before[b] == now[n]; });
  put_ends(out, now.size(), ends);
  put_planes(out, std::vector(now.begin() + static_cast<std::ptrdiff_t>(ends.prefix),
                              now.end() - static_cast<std::ptrdiff_t>(ends.suffix)));
}

using Fields = std::vector<std::vector<std::uint32_t>>;

void put_vertices(std::string& out, const Fields& before, const Fields& now) {
  const Changed ends =
      unchanged_ends(before[0].size(), now[0].size(), [&](std::size_t b, std::size_t n) {
        for (std::size_t f = 0; f < kFields; ++f) {
          if (before[f][b] != now[f][n]) return false;
        }
        return true;
      });
  put_ends(out, now[0].size(), ends);
  const std::size_t begin = ends.prefix;
  const std::size_t end = now[0].size() - ends.suffix;
  const bool same_count = before[0].size() == now[0].size();
  const Against against = same_count ? Against::before : Against::neighbour;
  put(out, static_cast<std::uint8_t>(against));
  for (std::size_t f = 0; f < kFields; ++f) {
    std::vector<std::uint32_t> differences;
    differences.reserve(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint32_t other = same_count ? before[f][i] : i > 0 ? now[f][i - 1] : 0;
      differences.push_back(f == kFields - 1 ? now[f][i] ^ other : folded(now[f][i] - other));
    }
    put_planes(out, differences);
  }
}

void put_texels(std::string& out, const ImTextureData& texture, const ImTextureRect& rect) {
  for (const unsigned value :
       {unsigned{rect.x}, unsigned{rect.y}, unsigned{rect.w}, unsigned{rect.h}}) {
    put(out, static_cast<std::uint16_t>(value));
  }
  const auto row =
      static_cast<std::size_t>(rect.w) * static_cast<std::size_t>(texture.BytesPerPixel);
  for (int y = 0; y < rect.h; ++y) {
    const auto at = static_cast<std::size_t>(rect.y + y) * static_cast<std::size_t>(texture.Width) +
                    static_cast<std::size_t>(rect.x);
    out.append(reinterpret_cast<const char*>(texture.Pixels) +
                   at * static_cast<std::size_t>(texture.BytesPerPixel),
               row);
  }
}

}  // namespace

std::string deflated(const std::string& bytes) {
  constexpr int kFast = 3;
  constexpr int kRaw = -15;
  z_stream stream{};
  if (deflateInit2(&stream, kFast, Z_DEFLATED, kRaw, 9, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw Error("view --serve: zlib can't compress");
  }
  std::string out(deflateBound(&stream, static_cast<uLong>(bytes.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int done = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (done != Z_STREAM_END) throw Error("view --serve: zlib can't compress");
  return out;
}

void DrawStream::restart() {
  textures_.clear();
  drawings_.clear();
  frame_.clear();
}

bool DrawStream::add_textures(const ImDrawData& data, std::string& out) {
  std::string changes;
  std::uint32_t count = 0;
  const auto begin = [&](TextureChange change, std::uint32_t id) {
    ++count;
    put(changes, change);
    put(changes, id);
  };
  for (auto& [id, used] : textures_) used = false;
  for (const ImTextureData* texture : *data.Textures) {
    if (texture->Status == ImTextureStatus_Destroyed) continue;
    if (texture->Status == ImTextureStatus_WantDestroy && texture->UnusedFrames > 0) continue;
    const auto id = static_cast<std::uint32_t>(texture->TexID);
    const bool known = textures_.contains(id);
    textures_[id] = true;
    if (!known) {
      begin(TextureChange::create, id);
      put(changes, static_cast<std::uint8_t>(texture->BytesPerPixel));
      put(changes, static_cast<std::uint8_t>(has_sharp_texels(*texture)));
      put_texels(changes, *texture,
                 {0, 0, static_cast<unsigned short>(texture->Width),
                  static_cast<unsigned short>(texture->Height)});
    } else if (texture->Status == ImTextureStatus_WantUpdates) {
      for (const ImTextureRect& rect : texture->Updates) {
        begin(TextureChange::update, id);
        put_texels(changes, *texture, rect);
      }
    }
  }
  for (auto entry = textures_.begin(); entry != textures_.end();) {
    if (!entry->second) begin(TextureChange::destroy, entry->first);
    entry = entry->second ? std::next(entry) : textures_.erase(entry);
  }
  put(out, count);
  out += changes;
  return count > 0;
}

DrawStream::Drawing DrawStream::drawing_of(const ImDrawList& list) {
  Drawing drawing;
  drawing.name = list._OwnerName == nullptr ? "" : list._OwnerName;
  for (const ImDrawCmd& command : list.CmdBuffer) {
    if (command.UserCallback != nullptr || command.ElemCount == 0) continue;
    put(drawing.commands, command.ClipRect);
    put(drawing.commands, static_cast<std::uint32_t>(command.GetTexID()));
    put(drawing.commands, command.VtxOffset);
    put(drawing.commands, command.IdxOffset);
    put(drawing.commands, command.ElemCount);
  }
  static_assert(sizeof(ImDrawIdx) == sizeof(std::uint16_t));
  drawing.index_steps.reserve(static_cast<std::size_t>(list.IdxBuffer.Size));
  std::uint16_t before = 0;
  for (const ImDrawIdx index : list.IdxBuffer) {
    drawing.index_steps.push_back(static_cast<std::uint16_t>(index - std::exchange(before, index)));
  }
  drawing.vertices.resize(kFields);
  for (auto& field : drawing.vertices) field.reserve(static_cast<std::size_t>(list.VtxBuffer.Size));
  for (const ImDrawVert& vertex : list.VtxBuffer) {
    drawing.vertices[0].push_back(fixed(vertex.pos.x, kPositionParts));
    drawing.vertices[1].push_back(fixed(vertex.pos.y, kPositionParts));
    drawing.vertices[2].push_back(fixed(vertex.uv.x, kTextureParts));
    drawing.vertices[3].push_back(fixed(vertex.uv.y, kTextureParts));
    drawing.vertices[4].push_back(vertex.col);
  }
  return drawing;
}

bool DrawStream::add_drawings(const ImDrawData& data, std::string& out) {
  const Drawing nothing{"", "", {}, Fields(kFields)};
  std::vector<Drawing> drawings;
  put(out, static_cast<std::uint32_t>(data.CmdLists.Size));
  bool changed = static_cast<std::size_t>(data.CmdLists.Size) != drawings_.size();
  for (const ImDrawList* list : data.CmdLists) {
    drawings.push_back(drawing_of(*list));
    const Drawing& now = drawings.back();
    const auto found = std::ranges::find(drawings_, now.name, &Drawing::name);
    const bool known = found != drawings_.end();
    const auto place = static_cast<std::uint16_t>(found - drawings_.begin());
    changed = changed || !known || place + 1U != drawings.size();
    if (known && *found == now) {
      put(out, DrawingChange::none);
      put(out, place);
      continue;
    }
    changed = true;
    put(out, DrawingChange::part);
    put(out, known ? place : kNone);
    put(out, static_cast<std::uint32_t>(now.commands.size()));
    out += now.commands;
    const Drawing& before = known ? *found : nothing;
    put_indices(out, before.index_steps, now.index_steps);
    put_vertices(out, before.vertices, now.vertices);
  }
  drawings_ = std::move(drawings);
  return changed;
}

std::string DrawStream::next(const ImDrawData& data) {
  std::string frame;
  for (const float value : {data.DisplaySize.x, data.DisplaySize.y, data.FramebufferScale.x}) {
    put(frame, value);
  }
  std::string out = frame;
  const bool resized = std::exchange(frame_, frame) != frame;
  const bool texels = add_textures(data, out);
  const bool drawings = add_drawings(data, out);
  return resized || texels || drawings ? deflated(out) : "";
}

}  // namespace blockscope
