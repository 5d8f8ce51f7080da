# make install: command, libraries, headers, pkg-config and CMake package files, man pages.
include(CMakePackageConfigHelpers)
install(TARGETS ringfold_shared ringfold_static LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET ringfold)
    install(TARGETS ringfold RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/ringfold DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
file(GLOB man_pages CONFIGURE_DEPENDS man/*.1 man/*.3)
if(man_pages)
    install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
# The prefix as seen from the .pc file, so that `cmake --install --prefix` may put the tree anywhere.
file(RELATIVE_PATH PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/ringfold.pc.in ringfold.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ringfold.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_package_config_file(cmake/ringfold-config.cmake.in ringfold-config.cmake
    PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ringfold)
write_basic_package_version_file(ringfold-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ringfold-config.cmake ${PROJECT_BINARY_DIR}/ringfold-config-version.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ringfold)
