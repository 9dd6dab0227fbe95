import js from "@eslint/js";
import ts from "typescript-eslint";

export default ts.config(
    { ignores: ["dist/**", "dist-test/**", "node_modules/**"] },
    js.configs.recommended,
    {
        files: ["**/*.ts"],
        extends: [...ts.configs.strictTypeChecked],
        languageOptions: { parserOptions: { projectService: true } },
        rules: {
            "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
            "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
            // node:test's describe and it return promises that nobody waits for.
            "@typescript-eslint/no-floating-promises": [
                "error",
                {
                    allowForKnownSafeCalls: [
                        { from: "package", name: ["it", "test", "describe"], package: "node:test" },
                    ],
                },
            ],
            // Two unlike classes that both are disposables are one thing to VS Code.
      '@typescript-eslint/no-unsafe-class-instance-assignment': 'off',
      eqeqeq: ["error", "always", { null: "ignore" }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true, ignoreVoidReturningFunctions: true }],
            "no-console": "error",
        },
    },
    {
        files: ["**/*.mjs", "media/**/*.js"],
        languageOptions: {
            globals: {
                process: "readonly",
                console: "readonly",
                document: "readonly",
                window: "readonly",
                acquireVsCodeApi: "readonly",
            },
        },
    },
);
