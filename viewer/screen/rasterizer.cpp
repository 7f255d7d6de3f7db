#include "viewer/screen/rasterizer.h"

#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "viewer/screen/heatmap_texture.h"

namespace blockscope {
namespace {

constexpr std::uint32_t kBackground = 0xFF1A1A1A;  // the window's
constexpr int kSubpixelBits = 8;                   // of a vertex's place, as graphics cards have
constexpr std::int64_t kPixel = 1 << kSubpixelBits;

struct Colour4 {
  float r, g, b, a;  // 0 to 1
};

Colour4 unpacked(std::uint32_t rgba) {
  constexpr float kStep = 1.0F / 255.0F;
  return {
      static_cast<float>(rgba & 0xFFU) * kStep, static_cast<float>((rgba >> 8U) & 0xFFU) * kStep,
      static_cast<float>((rgba >> 16U) & 0xFFU) * kStep, static_cast<float>(rgba >> 24U) * kStep};
}

Colour4 mixed(const Colour4& a, const Colour4& b, float share) {
  return {a.r + share * (b.r - a.r), a.g + share * (b.g - a.g), a.b + share * (b.b - a.b),
          a.a + share * (b.a - a.a)};
}

class Sampler {
 public:
  explicit Sampler(const ImTextureData& texture)
      : pixels_(texture.Pixels),
        width_(texture.Width),
        height_(texture.Height),
        alpha_only_(texture.Format == ImTextureFormat_Alpha8),
        sharp_(has_sharp_texels(texture)) {}

  bool sharp() const { return sharp_; }
  float width() const { return static_cast<float>(width_); }
  float height() const { return static_cast<float>(height_); }

  /// `nearest`: the cell at this place; else a mean of the four nearest texels.
  Colour4 at(float u, float v, bool nearest) const {
    const float x = u * width();
    const float y = v * height();
    if (nearest) return texel(static_cast<int>(std::floor(x)), static_cast<int>(std::floor(y)));
    const float left = std::floor(x - 0.5F);
    const float top = std::floor(y - 0.5F);
    const int x0 = static_cast<int>(left);
    const int y0 = static_cast<int>(top);
    const float dx = x - 0.5F - left;
    const float dy = y - 0.5F - top;
    return mixed(mixed(texel(x0, y0), texel(x0 + 1, y0), dx),
                 mixed(texel(x0, y0 + 1), texel(x0 + 1, y0 + 1), dx), dy);
  }

 private:
  Colour4 texel(int x, int y) const {
    x = std::clamp(x, 0, width_ - 1);
    y = std::clamp(y, 0, height_ - 1);
    const std::size_t at = static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) +
                           static_cast<std::size_t>(x);
    if (alpha_only_) return {1.0F, 1.0F, 1.0F, static_cast<float>(pixels_[at]) / 255.0F};
    const unsigned char* rgba = pixels_ + 4 * at;
    return {static_cast<float>(rgba[0]) / 255.0F, static_cast<float>(rgba[1]) / 255.0F,
            static_cast<float>(rgba[2]) / 255.0F, static_cast<float>(rgba[3]) / 255.0F};
  }

  const unsigned char* pixels_;
  int width_, height_;
  bool alpha_only_, sharp_;
};

void blend(std::uint32_t& pixel, const Colour4& colour) {
  const float keep = 1.0F - colour.a;
  const auto channel = [&](unsigned shift, float value) {
    const auto old = static_cast<float>((pixel >> shift) & 0xFFU);
    return static_cast<std::uint32_t>(255.0F * value * colour.a + old * keep + 0.5F) << shift;
  };
  pixel = channel(0, colour.r) | channel(8, colour.g) | channel(16, colour.b) | 0xFF000000U;
}

struct Point {
  std::int64_t x, y;  // in parts of a pixel
};

struct Bounds {
  int x0, y0, x1, y1;  // pixels, x1 and y1 excluded
};

class Rasterizer {
 public:
  explicit Rasterizer(const ImDrawData& data)
      : origin_(data.DisplayPos), scale_(data.FramebufferScale) {
    image_.width = static_cast<int>(data.DisplaySize.x * scale_.x);
    image_.height = static_cast<int>(data.DisplaySize.y * scale_.y);
    image_.rgba.assign(
        static_cast<std::size_t>(image_.width) * static_cast<std::size_t>(image_.height),
        kBackground);
  }

  void draw(const ImDrawList& list, const ImDrawCmd& command) {
    const ImTextureData* texture = command.TexRef._TexData;
    if (texture == nullptr || texture->Pixels == nullptr) return;
    const ImVec4& clip = command.ClipRect;
    const Bounds bounds = {
        std::max(0, static_cast<int>((clip.x - origin_.x) * scale_.x)),
        std::max(0, static_cast<int>((clip.y - origin_.y) * scale_.y)),
        std::min(image_.width, static_cast<int>((clip.z - origin_.x) * scale_.x)),
        std::min(image_.height, static_cast<int>((clip.w - origin_.y) * scale_.y))};
    if (bounds.x0 >= bounds.x1 || bounds.y0 >= bounds.y1) return;
    const Sampler sampler(*texture);
    const ImDrawIdx* index = list.IdxBuffer.Data + command.IdxOffset;
    const ImDrawVert* vertices = list.VtxBuffer.Data + command.VtxOffset;
    for (unsigned i = 0; i + 2 < command.ElemCount; i += 3) {
      triangle({vertices + index[i], vertices + index[i + 1], vertices + index[i + 2]}, sampler,
               bounds);
    }
  }

  Image take() { return std::move(image_); }

 private:
  Point place(const ImDrawVert& vertex) const {
    const auto fixed = [](float value) {
      constexpr float kFarthest = 1e6F;  // keeps the products below in 64 bits
      return std::llround(std::clamp(value, -kFarthest, kFarthest) * static_cast<float>(kPixel));
    };
    return {fixed((vertex.pos.x - origin_.x) * scale_.x),
            fixed((vertex.pos.y - origin_.y) * scale_.y)};
  }

  void triangle(std::array<const ImDrawVert*, 3> corners, const Sampler& sampler,
                const Bounds& clip) {
    std::array<Point, 3> at = {place(*corners[0]), place(*corners[1]), place(*corners[2])};
    std::int64_t area = doubled_area(at[0], at[1], at[2]);
    if (area == 0) return;
    if (area < 0) {
      std::swap(at[1], at[2]);
      std::swap(corners[1], corners[2]);
      area = -area;
    }
    const auto [least_x, most_x] = std::minmax({at[0].x, at[1].x, at[2].x});
    const auto [least_y, most_y] = std::minmax({at[0].y, at[1].y, at[2].y});
    const auto pixel = [](std::int64_t value) { return static_cast<int>(value >> kSubpixelBits); };
    const Bounds bounds = {std::max(clip.x0, pixel(least_x)), std::max(clip.y0, pixel(least_y)),
                           std::min(clip.x1, pixel(most_x) + 1),
                           std::min(clip.y1, pixel(most_y) + 1)};
    if (bounds.x0 >= bounds.x1 || bounds.y0 >= bounds.y1) return;
    const std::array<Colour4, 3> colours = {unpacked(corners[0]->col), unpacked(corners[1]->col),
                                            unpacked(corners[2]->col)};
    const auto same = [&](const auto& field) {
      return field(*corners[0]) == field(*corners[1]) && field(*corners[0]) == field(*corners[2]);
    };
    const bool one_colour = same([](const ImDrawVert& vertex) { return vertex.col; });
    const bool one_texel = same([](const ImDrawVert& vertex) { return vertex.uv.x; }) &&
                           same([](const ImDrawVert& vertex) { return vertex.uv.y; });
    const bool nearest = sampler.sharp() && enlarges(corners, sampler, area);
    const Colour4 texel =
        one_texel ? sampler.at(corners[0]->uv.x, corners[0]->uv.y, nearest) : Colour4{};
    // Edge k is opposite corner k. A pixel centre on an edge belongs to the triangle if the edge is
    // a left or a bottom one (OpenGL's y axis points up): two triangles that share an edge draw
    // each pixel once.
    std::array<std::int64_t, 3> step_x{};
    std::array<std::int64_t, 3> step_y{};
    std::array<std::int64_t, 3> row{};
    std::array<std::int64_t, 3> least{};
    const Point centre = {bounds.x0 * kPixel + kPixel / 2, bounds.y0 * kPixel + kPixel / 2};
    for (std::size_t k = 0; k < 3; ++k) {
      const Point& from = at[(k + 1) % 3];
      const Point& to = at[(k + 2) % 3];
      step_x[k] = -(to.y - from.y) * kPixel;
      step_y[k] = (to.x - from.x) * kPixel;
      row[k] = doubled_area(from, to, centre);
      const bool inside = to.y < from.y || (to.y == from.y && to.x < from.x);
      least[k] = inside ? 0 : 1;
    }
    const float share = 1.0F / static_cast<float>(area);
    for (int y = bounds.y0; y < bounds.y1; ++y) {
      std::array<std::int64_t, 3> edge = row;
      std::uint32_t* line =
          image_.rgba.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(image_.width);
      for (int x = bounds.x0; x < bounds.x1; ++x) {
        if (edge[0] >= least[0] && edge[1] >= least[1] && edge[2] >= least[2]) {
          const float a = static_cast<float>(edge[0]) * share;
          const float b = static_cast<float>(edge[1]) * share;
          const float c = static_cast<float>(edge[2]) * share;
          Colour4 colour = one_colour ? colours[0] : weighted(colours, a, b, c);
          const Colour4 sample =
              one_texel
                  ? texel
                  : sampler.at(a * corners[0]->uv.x + b * corners[1]->uv.x + c * corners[2]->uv.x,
                               a * corners[0]->uv.y + b * corners[1]->uv.y + c * corners[2]->uv.y,
                               nearest);
          colour = {colour.r * sample.r, colour.g * sample.g, colour.b * sample.b,
                    colour.a * sample.a};
          if (colour.a > 0.0F) blend(line[x], colour);
        }
        for (std::size_t k = 0; k < 3; ++k) edge[k] += step_x[k];
      }
      for (std::size_t k = 0; k < 3; ++k) row[k] += step_y[k];
    }
  }

  static std::int64_t doubled_area(const Point& a, const Point& b, const Point& c) {
    return (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
  }

  static Colour4 weighted(const std::array<Colour4, 3>& colours, float a, float b, float c) {
    return {a * colours[0].r + b * colours[1].r + c * colours[2].r,
            a * colours[0].g + b * colours[1].g + c * colours[2].g,
            a * colours[0].b + b * colours[1].b + c * colours[2].b,
            a * colours[0].a + b * colours[1].a + c * colours[2].a};
  }

  /// Whether a texel covers more than a pixel.
  static bool enlarges(const std::array<const ImDrawVert*, 3>& corners, const Sampler& sampler,
                       std::int64_t area) {
    const ImVec2& a = corners[0]->uv;
    const ImVec2& b = corners[1]->uv;
    const ImVec2& c = corners[2]->uv;
    const float texels = std::abs((b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x)) *
                         sampler.width() * sampler.height();
    return texels <= static_cast<float>(area) / static_cast<float>(kPixel * kPixel);
  }

  Image image_;
  ImVec2 origin_, scale_;
};

}  // namespace

Image rasterized(const ImDrawData& data) {
  Rasterizer rasterizer(data);
  for (const ImDrawList* list : data.CmdLists) {
    for (const ImDrawCmd& command : list->CmdBuffer) {
      if (command.UserCallback == nullptr) rasterizer.draw(*list, command);
    }
  }
  return rasterizer.take();
}

}  // namespace blockscope
