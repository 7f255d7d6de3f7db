// The exceptions of the whole project. A message says where, what was expected, what was found and
// what to do next: "trace.h5:/attention/lse_external: expected [row, 36, 32, 32], got
// [row, 36, 32, 31]. HINT: ...". `main` catches `Error` once. The exit code is 2 for `UsageError`,
// 128 + the signal number for `InterruptedError`, and 1 for every other error.
#pragma once

#include <stdexcept>
#include <string>

namespace blockscope {

/// Root of every error a user can cause or meet.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A flag or a combination of flags that makes no sense (exit code 2).
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A plugin's code raised an error or returned something wrong. The same command would fail again.
class PluginError : public Error {
 public:
  using Error::Error;
};

/// A signal, or the caller of a long pass, stopped the work. The message says what became of the
/// work.
class InterruptedError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint, config or tokenizer that can't be used.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A prompt file or prompt that can't be used.
class PromptError : public Error {
 public:
  using Error::Error;
};

/// A calibration file that can't be read, written or used with this model.
class CalibrationError : public Error {
 public:
  using Error::Error;
};

/// A trajectory file of another tool that can't be imported.
class TrajectoryError : public Error {
 public:
  using Error::Error;
};

/// A trace file that can't be read or written. The subclasses let a caller react differently.
class TraceError : public Error {
 public:
  using Error::Error;
};

/// Another process holds the file's lock; it may be free in a moment.
class TraceLocked : public TraceError {
 public:
  using TraceError::TraceError;
};

/// The file is not a Blockscope trace at all.
class NotATrace : public TraceError {
 public:
  using TraceError::TraceError;
};

/// The file was written by a newer schema than this build knows.
class UnsupportedVersion : public TraceError {
 public:
  using TraceError::TraceError;
};

/// The file is a trace, but its contents contradict each other.
class CorruptTrace : public TraceError {
 public:
  using TraceError::TraceError;
};

}  // namespace blockscope
