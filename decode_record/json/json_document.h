// A JSON file that somebody else wrote, as a document in memory. What could hurt the reader is
// refused here, once: no regular file, too large, too deep, cut off, a name given twice.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace blockscope {

/// The whole content of `path`. Throws TrajectoryError when it is no regular file (a pipe is never
/// waited for), can't be read or has more than 256 MiB.
std::string read_document(const std::string& path);

/// Throws TrajectoryError, with the byte, for text that does not parse, nests deeper than `depth`,
/// has more than 33 million values or names a member of an object twice. `name` is the file in
/// messages.
nlohmann::json parse_document(std::string_view text, const std::string& name, std::size_t depth);

}  // namespace blockscope
