# What every target of the project shares: warnings, sanitizers, compiler cache, linker, and how a test is declared.

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(RAILSD_SANITIZE)
  add_compile_options(-fsanitize=${RAILSD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${RAILSD_SANITIZE})
endif()

# Warnings for our own code; generated code is exempt.
add_library(railsd_options INTERFACE)
target_compile_options(railsd_options INTERFACE -Wall -Wextra -Wpedantic -Werror)
target_include_directories(railsd_options INTERFACE ${PROJECT_SOURCE_DIR})

# In every program: what ThreadSanitizer has to know of libraries that are not instrumented.
if(RAILSD_SANITIZE STREQUAL thread AND NOT RAILSD_CORE_ONLY)
  set(RAILSD_SANITIZERS ${PROJECT_SOURCE_DIR}/tests/sanitizers)
  add_library(railsd_tsan OBJECT
    ${RAILSD_SANITIZERS}/tsan_abseil.cc ${RAILSD_SANITIZERS}/tsan_grpc.cc ${RAILSD_SANITIZERS}/tsan_options.cc)
  target_link_libraries(railsd_tsan PRIVATE railsd_options)
  target_sources(railsd_options INTERFACE
    $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:railsd_tsan>>)
endif()

# railsd_test(NAME SUITE suite SOURCES ... LIBRARIES ...): a GoogleTest program, run by ctest under the suite's label.
function(railsd_test name)
  cmake_parse_arguments(ARG "" "SUITE;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)  # a hang, not a slow machine
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE railsd_options ${ARG_LIBRARIES} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_SUITE} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# railsd_fuzzer(NAME SOURCES ... LIBRARIES ...): a libFuzzer program, built only with RAILSD_FUZZERS.
function(railsd_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT RAILSD_FUZZERS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE railsd_options ${ARG_LIBRARIES})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
