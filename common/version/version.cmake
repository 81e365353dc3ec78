# Where the version comes from: the latest tag vX.Y.Z of git. N commits after it the version is X.Y.Z+N.gHASH; without
# such a tag, or without git, it is the one of project() in the top CMakeLists.txt.
#
#   cmake -D SOURCE_DIR=... -D PROJECT_VERSION=... -D OUT=version.cc -P version.cmake
#
# writes the source that has it, unless it is there already: a new version compiles nothing else. Without OUT only the
# variable RAILSD_VERSION is set, for who includes this file.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --tags --long --match "v[0-9]*.[0-9]*.[0-9]*"
  OUTPUT_VARIABLE described ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
set(RAILSD_VERSION ${PROJECT_VERSION})
if(described MATCHES "^v([0-9]+\\.[0-9]+\\.[0-9]+)-([0-9]+)-(g[0-9a-f]+)$")
  set(RAILSD_VERSION ${CMAKE_MATCH_1})
  if(CMAKE_MATCH_2 GREATER 0)
    string(APPEND RAILSD_VERSION "+${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
  endif()
endif()
file(STRINGS ${SOURCE_DIR}/CHANGELOG.md headings REGEX "^## ")
string(REGEX MATCH "[0-9]+-[0-9]+-[0-9]+" RAILSD_DATE "${headings}")
if(OUT)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/version.cc.in ${OUT} @ONLY)
endif()
