// Reads a JSON file of another program into memory. These functions refuse what could harm a
// reader: a file that is not regular, too large, too deep or cut off, and a name that is given
// twice.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace blockscope {

/// The whole content of `path`. Throws TrajectoryError if it is not a regular file (it never waits
/// for a pipe), can't be read or has more than 256 MiB.
std::string read_document(const std::string& path);

/// Throws TrajectoryError with the byte for text that does not parse, nests deeper than `depth`,
/// has more than 33 million values or names a member of an object twice. Messages show `name` as
/// the file.
nlohmann::json parse_document(std::string_view text, const std::string& name, std::size_t depth);

}  // namespace blockscope
