// What a damaged trace makes a computation throw, said with the trace's name. Readers and metrics
// check what they use; this is for the value that nobody thought of.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "decode_record/base/error.h"

namespace blockscope {

/// Runs `work` over the trace at `path`. What is no TraceError, UsageError or InterruptedError and
/// does not name the trace comes out as CorruptTrace that does; exceptions of other kinds pass.
template <typename Work>
auto naming_damage(const std::string& path, const Work& work) {
  const auto damaged = [&path](const std::string& what) {
    return CorruptTrace(path + ": its values contradict each other: " + what +
                        ". HINT: the file is damaged.");
  };
  try {
    return work();
  } catch (const TraceError&) {
    throw;
  } catch (const UsageError&) {
    throw;
  } catch (const InterruptedError&) {
    throw;
  } catch (const Error& error) {
    if (std::string(error.what()).find(path) != std::string::npos) throw;
    throw damaged(error.what());
  } catch (const std::bad_alloc&) {
    throw damaged("more memory is asked for than there is");
  } catch (const std::out_of_range&) {
    throw damaged("an index is out of range");
  } catch (const std::length_error&) {
    throw damaged("a length is out of range");
  } catch (const std::logic_error&) {  // ours, and no damage
    throw;
  } catch (const std::runtime_error&) {  // the machine's
    throw;
  } catch (const std::exception& error) {  // JSON of another shape than ours
    throw damaged(error.what());
  }
}

}  // namespace blockscope
