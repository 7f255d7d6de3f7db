// The files that one command reads and writes. No input can become an output, under any name, with
// any flag. No two outputs can be the same file.
#pragma once

#include <string>
#include <vector>

#include "decode_record/files/output_file.h"

namespace blockscope {

class CommandFiles {
 public:
  /// A file that the command reads. An empty name means no file.
  void reads(const std::string& path);
  /// A trace: finished or `.partial`, and the files whose rows a merged one shows.
  void reads_trace(const std::string& path);
  /// The files of a checkpoint in the Hugging Face layout: weights, configuration, tokenizer,
  /// template. Other files in its folder, such as traces, may become outputs.
  void reads_checkpoint(const std::string& folder);

  /// Reserves a name for an output that the command writes itself. Files are compared by device and
  /// inode, so a link is the same as its target. Throws UsageError if the command reads this file
  /// or has reserved it, and what check_output_name throws.
  void reserve(const std::string& path, bool replace);
  /// Reserves the standard output. Throws UsageError if another output has it already.
  void reserve_standard_output();
  /// Reserves the name as reserve() does, and opens the output.
  OutputFile open(const std::string& path, bool replace);

  /// The outputs so far.
  const std::vector<std::string>& written() const { return outputs_; }

 private:
  std::vector<std::string> inputs_;
  std::vector<std::string> outputs_;
};

}  // namespace blockscope
