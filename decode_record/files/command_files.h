// The files of one command: what it reads and what it will write. Nothing that is read can become
// an output, under any name, with any flag; no two outputs are one file.
#pragma once

#include <string>
#include <vector>

#include "decode_record/files/output_file.h"

namespace blockscope {

class CommandFiles {
 public:
  /// A file that the command reads; an empty name is none.
  void reads(const std::string& path);
  /// A trace: finished or `.partial`, and the files whose rows a merged one shows.
  void reads_trace(const std::string& path);
  /// The files of a checkpoint in the Hugging Face layout: weights, configuration, tokenizer,
  /// template. Other files in its folder, such as traces, are not the model's.
  void reads_checkpoint(const std::string& folder);

  /// Reserves a name for an output that the command writes itself. Files are compared by identity
  /// (device and inode), so links count as what they name. Throws UsageError when the command reads
  /// this file or has reserved it, and what check_output_name throws.
  void reserve(const std::string& path, bool replace);
  /// The standard output as an output. Throws UsageError when one has it already.
  void reserve_standard_output();
  /// The same as reserve(), and opens it.
  OutputFile open(const std::string& path, bool replace);

  /// The outputs so far.
  const std::vector<std::string>& written() const { return outputs_; }

 private:
  std::vector<std::string> inputs_;
  std::vector<std::string> outputs_;
};

}  // namespace blockscope
