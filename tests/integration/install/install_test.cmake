# Installs the client library into a new directory, moves it, and builds and runs the example against it twice: found
# by find_package and by pkg-config. Arguments: BUILD_DIR, EXAMPLES_DIR, LIBDIR, CXX.
cmake_policy(VERSION 3.25)

execute_process(COMMAND mktemp -d OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

# Removes the directory, then ends the test.
function(fail what)
  file(REMOVE_RECURSE ${root})
  message(FATAL_ERROR "${what}")
endfunction()

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    fail("${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# The program must start, reach its client library and say what is missing: no daemon listens there.
function(check_program program)
  execute_process(COMMAND ${program} --world 1 --wait 0 ${root}/nowhere RESULT_VARIABLE result ERROR_VARIABLE output)
  if(NOT result EQUAL 1 OR NOT output MATCHES "nowhere/descriptors.sock.*is railsd running")
    fail("${program} ended with ${result}:\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${root}/first --component client-dev)
file(RENAME ${root}/first ${root}/prefix)

# Ninja, because `./dev` installs it and make need not be there.
run(${CMAKE_COMMAND} -G Ninja -S ${EXAMPLES_DIR} -B ${root}/build -DCMAKE_PREFIX_PATH=${root}/prefix
  -DCMAKE_CXX_COMPILER=${CXX})
run(${CMAKE_COMMAND} --build ${root}/build)
check_program(${root}/build/all_to_all)

find_program(PKG_CONFIG pkg-config REQUIRED)
set(ENV{PKG_CONFIG_PATH} ${root}/prefix/${LIBDIR}/pkgconfig)
run(${PKG_CONFIG} --static --cflags --libs railsd)
string(STRIP "${output}" flags)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${CXX} -std=c++20 ${EXAMPLES_DIR}/all_to_all.cc -o ${root}/by_pkg_config ${flags})
check_program(${root}/by_pkg_config)

# Nothing of gRPC or protobuf is needed to compile against the library.
file(GLOB_RECURSE headers RELATIVE ${root}/prefix ${root}/prefix/include/*)
if(NOT headers STREQUAL "include/rails/client.h")
  fail("installed headers: ${headers}")
endif()
file(REMOVE_RECURSE ${root})
