# Installs the client library for other projects. Component `client`: the shared library, for programs that are linked
# with it. Component `client-dev`: header, CMake package, pkg-config file and the static libraries. Installed files may
# be moved.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/railsd)
set_target_properties(rails_client_shared PROPERTIES EXPORT_NAME client)
set_target_properties(rails_client PROPERTIES EXPORT_NAME client_static)
set_target_properties(railsd_proto PROPERTIES EXPORT_NAME proto)
install(TARGETS rails_client_shared EXPORT railsdTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client NAMELINK_COMPONENT client-dev)
install(TARGETS rails_client railsd_proto EXPORT railsdStaticTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client-dev)
install(EXPORT railsdTargets NAMESPACE railsd:: DESTINATION ${package_dir} COMPONENT client-dev)
install(EXPORT railsdStaticTargets NAMESPACE railsd:: DESTINATION ${package_dir} COMPONENT client-dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/client/include/rails DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT client-dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/rails DESTINATION ${CMAKE_INSTALL_DATADIR}/railsd/proto
  COMPONENT client-dev FILES_MATCHING PATTERN "*.proto")

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/railsdConfig.cmake.in
  ${PROJECT_BINARY_DIR}/railsdConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a new minor version may break what links the old one.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/railsdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/railsdConfig.cmake ${PROJECT_BINARY_DIR}/railsdConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT client-dev)

file(RELATIVE_PATH RAILSD_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" RAILSD_PC_TO_PREFIX "${RAILSD_PC_TO_PREFIX}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/railsd.pc.in ${PROJECT_BINARY_DIR}/railsd.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/railsd.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT client-dev)
