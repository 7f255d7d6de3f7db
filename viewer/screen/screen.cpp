#include "viewer/screen/screen.h"

#include <imgui.h>
#include <implot.h>

#include <algorithm>
#include <utility>

#include "viewer/screen/fonts.h"

namespace blockscope {
namespace {

constexpr float kFontSize = 15.0F;

/// Like ImGuiStyle::ScaleAllSizes, for plots.
void scale_plots(float scale) {
  ImPlotStyle& style = ImPlot::GetStyle();
  style.PlotBorderSize *= scale;
  for (ImVec2* size : {&style.MajorTickLen, &style.MinorTickLen, &style.MajorTickSize,
                       &style.MinorTickSize, &style.MajorGridSize, &style.MinorGridSize,
                       &style.PlotPadding, &style.LabelPadding, &style.LegendPadding,
                       &style.LegendInnerPadding, &style.LegendSpacing, &style.AnnotationPadding}) {
    *size = ImVec2(size->x * scale, size->y * scale);
  }
}

}  // namespace

Image cropped(const Image& image, float left, float top, float width, float height) {
  const auto clamped = [](float value, int limit) {
    return std::clamp(static_cast<int>(value + 0.5F), 0, limit);
  };
  const int x0 = clamped(left, image.width);
  const int x1 = clamped(left + width, image.width);
  const int y0 = clamped(top, image.height);
  const int y1 = clamped(top + height, image.height);
  Image part{x1 - x0, y1 - y0, {}};
  for (int y = y0; y < y1; ++y) {
    const auto row = image.rgba.begin() + static_cast<std::ptrdiff_t>(y) * image.width;
    part.rgba.insert(part.rgba.end(), row + x0, row + x1);
  }
  return part;
}

void Screen::begin(float scale, const std::string& ini_file, bool alpha_texels) {
  scale_ = scale;
  ini_file_ = ini_file;
  begun_ = true;
  IMGUI_CHECKVERSION();
  ImGui::CreateContext();
  ImPlot::CreateContext();
  ImGuiIO& io = ImGui::GetIO();
  io.ConfigFlags |= ImGuiConfigFlags_DockingEnable | ImGuiConfigFlags_NavEnableKeyboard;
  io.IniFilename = ini_file_.empty() ? nullptr : ini_file_.c_str();
  if (alpha_texels) io.Fonts->TexDesiredFormat = ImTextureFormat_Alpha8;
  ImGui::GetStyle().ScaleAllSizes(scale_);
  scale_plots(scale_);
  load_fonts(find_fonts(), kFontSize * scale_);
}

void Screen::end() {
  if (!std::exchange(begun_, false)) return;
  ImPlot::DestroyContext();
  ImGui::DestroyContext();
}

Screen::~Screen() { end(); }

std::vector<std::string> Screen::take_dropped_files() { return std::exchange(dropped_, {}); }

}  // namespace blockscope
