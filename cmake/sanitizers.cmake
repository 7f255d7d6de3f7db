# Sanitizers for every target of the tree: BLOCKSCOPE_SANITIZE is a list such as
# "address;undefined". WITH_FUZZERS adds libFuzzer's coverage to the libraries under test.
add_library(blockscope_sanitizers INTERFACE)
set(_sanitize ${BLOCKSCOPE_SANITIZE})
if(WITH_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "WITH_FUZZERS needs clang (libFuzzer), found ${CMAKE_CXX_COMPILER_ID}. "
                        "HINT: cmake --preset fuzz")
  endif()
  list(APPEND _sanitize fuzzer-no-link)
endif()
if(_sanitize)
  list(JOIN _sanitize "," _sanitize)
  target_compile_options(blockscope_sanitizers INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${_sanitize};-fno-omit-frame-pointer>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
  target_link_options(blockscope_sanitizers INTERFACE -fsanitize=${_sanitize})
endif()
