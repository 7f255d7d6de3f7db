#include "command_line/text_output.h"

#include <unistd.h>

#include <iostream>
#include <streambuf>

#include "command_line/printable.h"

namespace blockscope {
namespace {

/// Passes lines on through printable().
class PrintableBuffer final : public std::streambuf {
 public:
  explicit PrintableBuffer(std::ostream& to) : to_(to) {}
  PrintableBuffer(const PrintableBuffer&) = delete;
  PrintableBuffer& operator=(const PrintableBuffer&) = delete;
  ~PrintableBuffer() override { hand_on(); }

 private:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    line_ += traits_type::to_char_type(c);
    if (line_.back() == '\n') hand_on();
    return c;
  }
  int sync() override {
    hand_on();
    return 0;
  }
  void hand_on() {
    to_ << printable(line_);
    line_.clear();
  }

  std::ostream& to_;
  std::string line_;
};

}  // namespace

void print_text(const std::function<void(std::ostream&)>& writer) {
  if (::isatty(STDOUT_FILENO) == 1) {
    PrintableBuffer buffer(std::cout);
    std::ostream lines(&buffer);
    writer(lines);
  } else {
    writer(std::cout);
  }
  std::cout.flush();
}

TextOutput::TextOutput(CommandFiles& files, const std::string& path, bool replace) {
  if (path == kStandardOutput) {
    files.reserve_standard_output();
  } else {
    file_ = files.open(path, replace);
  }
}

void TextOutput::write(const std::function<void(std::ostream&)>& writer) {
  if (file_) {
    file_->write(writer);
  } else {
    print_text(writer);
  }
}

void TextOutput::write(const std::string& text) {
  write([&text](std::ostream& out) { out << text; });
}

void TextOutput::commit() {
  if (file_) file_->commit();
}

}  // namespace blockscope
