#include "analysis/results/result_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "analysis/results/result_columns.h"
#include "decode_record/base/error.h"

namespace blockscope {
namespace {

constexpr std::array<std::string_view, 7> kPlaces{"layer",    "head",  "kv_head", "step",
                                                  "sequence", "block", "position"};
constexpr std::size_t kProfileRows = 9;  // rows of the table over the steps
constexpr std::size_t kMaxPages = 4;     // tables of one array

/// How one array becomes a table.
struct Layout {
  std::string row;                 // axis of the rows
  std::string column;              // axis of the columns; empty: the array is one column
  std::vector<std::string> pages;  // other axes that are not averaged: a table per element
};

/// The axis of the rows: the layers, else the first place. A parameter only if the array has no
/// place, because only places can be averaged.
std::string default_row(const ResultArray& array) {
  if (array.has_axis("layer")) return "layer";
  const auto place =
      std::ranges::find_if(array.axes, [](const auto& axis) { return is_place(axis.name); });
  return place != array.axes.end() ? place->name : array.axes.front().name;
}

Layout choose_layout(const ResultArray& array, const std::vector<std::string>& by) {
  Layout layout;
  layout.row = default_row(array);
  if (!by.empty()) layout.row = by[0];
  if (by.size() > 1) layout.column = by[1];
  for (const ResultAxis& axis : array.axes) {
    if (axis.name == layout.row || axis.name == layout.column) continue;
    if (is_place(axis.name) && !array.terms.empty()) continue;  // averaged
    if (layout.column.empty()) {
      layout.column = axis.name;
    } else {
      layout.pages.push_back(axis.name);
    }
  }
  return layout;
}

bool same_elements(const ResultAxis& a, const ResultAxis& b) {
  return a.name == b.name && a.index == b.index && a.labels == b.labels;
}

/// A table: several arrays with a column each, or one array with a column per element of an axis.
struct Section {
  std::string title;
  std::vector<const ResultArray*> arrays;
  std::string row;
  std::string column;
  const ResultAxis& row_axis(const std::string& name) const {
    return arrays.front()->axes.at(arrays.front()->axis(name));
  }
};

std::string note(std::size_t shown, std::size_t all, const std::string& what,
                 const std::string& hint) {
  return shown >= all ? ""
                      : fmt::format("  {} of {} values of {} shown{}\n", shown, all, what, hint);
}

/// A column per array, in as many tables as the width requires.
std::string arrays_table(const Section& section, const std::string& row, std::size_t max_rows,
                         const TableOptions& options) {
  std::vector<Column> columns;
  for (const ResultArray* array : section.arrays) {
    columns.push_back(make_column(array->name, *array, row));
  }
  std::string text;
  const ResultAxis& axis = section.row_axis(row);
  const bool totals = row == section.row && is_place(row);
  for (auto first = columns.begin(); first != columns.end();) {
    auto end = columns.end();
    TextTable table = make_table(axis, {first, end}, max_rows, totals);
    while (end - first > 1 && table.width() > options.width) {
      table = make_table(axis, {first, --end}, max_rows, totals);
    }
    text += table.text();
    first = end;
  }
  return text + note(max_rows, axis.size(), row, "; --by " + row + " shows more");
}

/// A column per element of the section's column axis; as many as fit.
std::string elements_table(const Section& section, const std::string& row, std::size_t max_rows,
                           const TableOptions& options) {
  const ResultArray& array = *section.arrays.front();
  const ResultAxis& axis = array.axes.at(array.axis(section.column));
  const auto make = [&](std::size_t count) {
    std::vector<Column> columns;
    for (const std::size_t i : spread(axis.size(), count)) {
      // Only the title has long names.
      const std::string sign = axis.labels.empty() && axis.name.size() <= 5 ? axis.name + "=" : "";
      columns.push_back(make_column(sign + axis.label(i), slice(array, section.column, i), row));
    }
    return make_table(section.row_axis(row), columns, max_rows,
                      row == section.row && is_place(row));
  };
  std::size_t count = std::min(axis.size(), options.width / 3);
  TextTable table = make(count);
  while (count > 1 && table.width() > options.width) table = make(--count);
  return table.text() + note(count, axis.size(), section.column, "; a wider terminal shows more") +
         note(max_rows, section.row_axis(row).size(), row, "; --by " + row + " shows more");
}

/// `with_course`: also adds the table over the steps.
std::string section_text(const Section& section, const TableOptions& options, bool with_course) {
  const auto table = [&](const std::string& row, std::size_t max_rows) {
    return section.column.empty() ? arrays_table(section, row, max_rows, options)
                                  : elements_table(section, row, max_rows, options);
  };
  std::string text = section.title.empty() ? "" : "  " + section.title + "\n";
  text += table(section.row, options.max_rows);
  if (with_course) text += "\n" + table("step", kProfileRows);
  return text;
}

bool has_course(const Section& section) {
  return section.row != "step" &&
         std::ranges::all_of(section.arrays,
                             [](const ResultArray* array) {
                               return array->has_axis("step") && !array->terms.empty();
                             }) &&
         section.row_axis("step").size() > 1;
}

/// Splits a result into sections; owns the slices that pages are made of.
class Sections {
 public:
  Sections(const MetricResult& result, const TableOptions& options) : options_(options) {
    slices_.reserve(result.arrays.size() * kMaxPages);
    for (const ResultArray& array : result.arrays) add(array);
  }

  std::string text() const {
    std::string text;
    bool course = options_.by.empty();  // once, for the result's first (main) arrays
    for (const Section& section : sections_) {
      const bool now = course && has_course(section);
      text += "\n" + section_text(section, options_, now);
      if (now) course = false;
    }
    return text + scalars_ + notes_;
  }
  bool empty() const { return sections_.empty() && scalars_.empty(); }

 private:
  void add(const ResultArray& array) {
    const auto lacks = [&](const std::string& axis) { return !array.has_axis(axis); };
    if (std::ranges::any_of(options_.by, lacks)) return;
    if (array.axes.empty()) return add_scalar(array);
    if (array.values.empty()) {
      notes_ += fmt::format("  {}: nothing to show\n", array.name);
      return;
    }
    const Layout layout = choose_layout(array, options_.by);
    if (!layout.pages.empty()) return add_pages(array, layout);
    if (layout.column.empty()) return add_column(array, layout.row);
    sections_.push_back(
        {title(array) + " by " + layout.column, {&array}, layout.row, layout.column});
  }

  static std::string title(const ResultArray& array) {
    return fmt::format("{} [{}]", array.name, array.unit);
  }

  void add_scalar(const ResultArray& array) {
    const std::string terms =
        array.terms.empty() ? "" : fmt::format("  ({} terms)", array.terms.at(0));
    scalars_ +=
        fmt::format("  {:<28} {:>12}{}\n", array.name, value_text(array.values.at(0)), terms);
  }

  void add_column(const ResultArray& array, const std::string& row) {
    const ResultAxis& axis = array.axes.at(array.axis(row));
    for (Section& section : sections_) {
      const bool same_steps =
          !array.has_axis("step") || !section.arrays[0]->has_axis("step") ||
          same_elements(section.row_axis("step"), array.axes.at(array.axis("step")));
      if (section.column.empty() && section.row == row && same_steps &&
          same_elements(section.row_axis(row), axis)) {
        section.arrays.push_back(&array);
        return;
      }
    }
    sections_.push_back({"", {&array}, row, ""});
  }

  /// A table per element of the last remaining axis.
  void add_pages(const ResultArray& array, Layout layout) {
    const std::string page = layout.pages.back();
    const ResultAxis axis = array.axes.at(array.axis(page));
    if (layout.pages.size() > 1 || options_.by.empty()) {
      notes_ +=
          fmt::format("  {}: too many axes for a table; see --by and the exports\n", array.name);
      return;
    }
    const auto picked = spread(axis.size(), kMaxPages);
    for (const std::size_t i : picked) {
      slices_.push_back(slice(array, page, i));
      sections_.push_back({fmt::format("{}, {} = {}", title(array), page, axis.label(i)),
                           {&slices_.back()},
                           layout.row,
                           layout.column});
    }
    notes_ += note(picked.size(), axis.size(), page, "; the exports have all");
  }

  const TableOptions& options_;
  std::vector<Section> sections_;
  std::vector<ResultArray> slices_;  // never reallocated: sections point into it
  std::string scalars_;
  std::string notes_;
};

std::string heading(const MetricResult& result) {
  std::string text = fmt::format("{}: {}\n", result.metric, result.title);
  text += fmt::format("  {}\n", result.formula);
  text += fmt::format("  {}\n  from {}\n", result.source, result.computed_from);
  for (const ResultArray& array : result.arrays) {
    if (!array.description.empty()) {
      text += fmt::format("  {} [{}]: {}\n", array.name, array.unit, array.description);
    }
  }
  return text;
}

std::string left_out_text(const MetricResult& result) {
  std::vector<std::string> parts;
  for (const auto& [reason, count] : result.left_out) {
    // The count comes after the reason, because the reason's plural must also fit a count of one.
    if (count != 0) parts.push_back(fmt::format("{} ({})", reason, count));
  }
  return parts.empty() ? "" : fmt::format("  left out: {}\n", fmt::join(parts, "; "));
}

}  // namespace

bool is_place(const std::string& axis) { return std::ranges::find(kPlaces, axis) != kPlaces.end(); }

std::string result_table(const MetricResult& result, const TableOptions& options) {
  const Sections sections(result, options);
  if (sections.empty() && !options.by.empty()) {
    return heading(result) +
           fmt::format("  no array with the axis {}\n", fmt::join(options.by, " and "));
  }
  return heading(result) + sections.text() + left_out_text(result);
}

}  // namespace blockscope
