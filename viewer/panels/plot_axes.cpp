#include "viewer/panels/plot_axes.h"

#include <cmath>
#include <string>

namespace blockscope {

void whole_numbers(ImAxis axis, const std::vector<std::int64_t>* names) {
  const auto label = [](double value, char* text, int size, void* data) {
    const auto* called = static_cast<const std::vector<std::int64_t>*>(data);
    const auto whole = static_cast<std::int64_t>(std::llround(value));
    const bool near = std::abs(value - static_cast<double>(whole)) < 1e-6;
    std::string number;
    if (near && called == nullptr) {
      number = std::to_string(whole);
    } else if (near && whole >= 0 && whole < std::ssize(*called)) {
      number = std::to_string((*called)[static_cast<std::size_t>(whole)]);
    }
    const std::size_t length = number.copy(text, static_cast<std::size_t>(size - 1));
    text[length] = '\0';
    return static_cast<int>(length);
  };
  ImPlot::SetupAxisFormat(axis, label,
                          const_cast<std::vector<std::int64_t>*>(names));  // only read
}

}  // namespace blockscope
