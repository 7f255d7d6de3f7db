// The three standard streams of a command. What it prints on the standard output is a result like
// any other: when it can't be written (a full disk, a closed descriptor), the command fails. The
// standard error is for people: when nobody can read it, the work goes on.
#pragma once

#include <fmt/format.h>

#include <string>

namespace blockscope {

/// Before anything is opened: a file must never get descriptor 0, 1 or 2, or what is printed lands
/// in it. A standard input or output that the caller closed refuses every use, as it did; the
/// standard error becomes the null device. A pipe that nobody reads any more, and a file
/// beyond its size limit, become errors instead of the end of the process: temporary files must not
/// stay behind.
void take_standard_descriptors();

/// Prints a line of advice or progress on the standard error, as printable() makes it; never fails.
void note_text(const std::string& text);
/// The same as it is, for what steers a terminal on purpose.
void draw_text(const std::string& text);
template <typename... Arguments>
void note(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  note_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// Prints on the standard output, as printable() makes it, and leaves the complaint to the end of
/// the command: for a run whose real result is a file. (fmt::print throws at once.)
void say_text(const std::string& text);
template <typename... Arguments>
void say(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  say_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// What became of everything printed on the standard output so far.
struct PrintedState {
  bool whole = true;
  bool nobody_reads = false;  ///< the reader of a pipe is gone, as after `| head`
  std::string problem;        ///< the system's words
};
/// Writes out what is buffered.
PrintedState flush_standard_output();

}  // namespace blockscope
