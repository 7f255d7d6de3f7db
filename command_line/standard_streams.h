// The three standard streams of a command. The standard output is a result like any other: if it
// can't be written (a full disk, a closed descriptor), the command fails. The standard error is for
// people: if nobody can read it, the work goes on.
#pragma once

#include <fmt/format.h>

#include <string>

namespace blockscope {

/// Called before any file is opened: a file with descriptor 0, 1 or 2 would receive what is
/// printed. If the caller closed the standard input or output, using it still fails. A closed
/// standard error becomes the null device. A pipe without a reader and a file above its size limit
/// become errors and don't end the process, so that temporary files are removed.
void take_standard_descriptors();

/// Prints advice or progress on the standard error, through printable(). Never fails.
void note_text(const std::string& text);
/// Prints text unchanged on the standard error, for text that steers a terminal on purpose.
void draw_text(const std::string& text);
template <typename... Arguments>
void note(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  note_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// Prints on the standard output, through printable(). A failure is reported when the command ends:
/// for a run whose main result is a file. (fmt::print throws at once.)
void say_text(const std::string& text);
template <typename... Arguments>
void say(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  say_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// What became of everything printed on the standard output so far.
struct PrintedState {
  bool whole = true;
  bool nobody_reads = false;  ///< the reader of a pipe is gone, as after `| head`
  std::string problem;        ///< the system's message
};
/// Writes out what is buffered.
PrintedState flush_standard_output();

}  // namespace blockscope
