#include "viewer/screen/fonts.h"

#include <imgui.h>
#ifdef BLOCKSCOPE_FONTCONFIG
#include <fontconfig/fontconfig.h>
#endif

#include <algorithm>
#include <array>
#include <memory>

namespace blockscope {
#ifdef BLOCKSCOPE_FONTCONFIG
namespace {

struct Wish {
  const char* family;
  const char* language;  // nullptr: any
};
constexpr std::array<Wish, 8> kWishes = {{{"DejaVu Sans", nullptr},
                                          {"sans", "zh-cn"},
                                          {"sans", "ja"},
                                          {"sans", "ko"},
                                          {"sans", "ar"},
                                          {"sans", "hi"},
                                          {"sans", "th"},
                                          {"symbol", nullptr}}};

using Pattern = std::unique_ptr<FcPattern, decltype(&FcPatternDestroy)>;

bool supports(FcPattern* font, const char* language) {
  FcLangSet* languages = nullptr;
  return FcPatternGetLangSet(font, FC_LANG, 0, &languages) == FcResultMatch &&
         FcLangSetHasLang(languages, reinterpret_cast<const FcChar8*>(language)) !=
             FcLangDifferentLang;
}

}  // namespace

std::vector<FontChoice> find_fonts() {
  std::vector<FontChoice> fonts;
  if (FcInit() != FcTrue) return fonts;
  for (const Wish& wish : kWishes) {
    const Pattern pattern(FcPatternCreate(), FcPatternDestroy);
    FcPatternAddString(pattern.get(), FC_FAMILY, reinterpret_cast<const FcChar8*>(wish.family));
    if (wish.language != nullptr) {
      FcPatternAddString(pattern.get(), FC_LANG, reinterpret_cast<const FcChar8*>(wish.language));
    }
    FcPatternAddBool(pattern.get(), FC_OUTLINE, FcTrue);
    FcPatternAddBool(pattern.get(), FC_COLOR, FcFalse);
    FcConfigSubstitute(nullptr, pattern.get(), FcMatchPattern);
    FcDefaultSubstitute(pattern.get());
    FcResult result = FcResultNoMatch;
    const Pattern font(FcFontMatch(nullptr, pattern.get(), &result), FcPatternDestroy);
    FcChar8* file = nullptr;
    if (!font || FcPatternGetString(font.get(), FC_FILE, 0, &file) != FcResultMatch) continue;
    // fontconfig always returns its nearest font: take it only if it has the script.
    if (wish.language != nullptr && !supports(font.get(), wish.language)) continue;
    FontChoice choice{reinterpret_cast<const char*>(file), 0, wish.family};
    FcChar8* family = nullptr;
    if (FcPatternGetString(font.get(), FC_FAMILY, 0, &family) == FcResultMatch) {
      choice.what = reinterpret_cast<const char*>(family);
    }
    FcPatternGetInteger(font.get(), FC_INDEX, 0, &choice.index);
    choice.index &= 0xFFFF;  // the upper half names an instance of a variable font
    const auto same = [&](const FontChoice& other) { return other.file == choice.file; };
    if (std::ranges::none_of(fonts, same)) fonts.push_back(choice);
  }
  return fonts;
}
#else
std::vector<FontChoice> find_fonts() { return {}; }  // ImGui's own font: Latin only
#endif

void load_fonts(const std::vector<FontChoice>& fonts, float size) {
  ImFontAtlas* atlas = ImGui::GetIO().Fonts;
  ImFontConfig config;
  if (fonts.empty()) {
    config.SizePixels = size;
    atlas->AddFontDefaultVector(&config);
    return;
  }
  for (const FontChoice& font : fonts) {
    config.FontNo = static_cast<ImU32>(font.index);
    config.Flags |= ImFontFlags_NoLoadError;
    if (atlas->AddFontFromFileTTF(font.file.c_str(), size, &config) != nullptr) {
      config.MergeMode = true;
    }
  }
  if (!config.MergeMode) atlas->AddFontDefaultVector();
}

}  // namespace blockscope
